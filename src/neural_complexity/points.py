"""Inputs of tasks: values, or indices into a store that all tasks share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from torch import Tensor

__all__ = ["PART", "Embeddings", "Points", "Store", "find", "indexed", "join", "map_inputs", "raw"]
__all__ += ["TensorFields", "check_dense", "restore", "values"]

PART = 2048  # inputs that are embedded at a time: bounds memory

Store = Callable[[Tensor], Tensor]  # indices (...) to inputs (..., D), on the indices' device
Embed = Callable[[Tensor], Tensor]  # inputs (P, D) to embeddings (P, features)


@dataclass(frozen=True, eq=False)
class Points:
    """B sets of n inputs of one store; stands wherever a tensor (B, n, D) of inputs may stand.

    Indexing, slicing and `to` act on the indices, so a point costs eight bytes until it is used.
    """

    indices: Tensor  # (B, n), int64
    store: Store

    @property
    def shape(self) -> torch.Size:
        """Tasks and points, (B, n)."""
        return self.indices.shape

    @property
    def device(self) -> torch.device:
        """Where the indices are, and so the values."""
        return self.indices.device

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: object) -> "Points":
        return Points(self.indices[key], self.store)  # type: ignore[index]

    def to(self, device: torch.device | str) -> "Points":
        """Moves the indices to a device."""
        return Points(self.indices.to(device), self.store)

    def values(self) -> Tensor:
        """Looks the inputs up, (B, n, D)."""
        return self.store(self.indices)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A store of embeddings, by the indices of the inputs that they were made of."""

    indices: Tensor  # (P,), ascending
    table: Tensor  # (P, features)

    def __call__(self, indices: Tensor) -> Tensor:
        """Looks embeddings up, (...) to (..., features)."""
        return self.table[find(self.indices, indices)]


def find(known: Tensor, indices: Tensor) -> Tensor:
    """Returns the places of indices, (..., n), among ascending ones, (P,) or (..., P)."""
    P = known.shape[-1]
    place = torch.searchsorted(known, indices.contiguous()).clamp(max=P - 1)
    # Without a look at what is there, the next larger index would answer for one that is missing.
    found = known[place] if known.ndim == 1 else known.gather(-1, place)
    if not torch.equal(found, indices):
        others = indices[found != indices][:3].tolist()
        raise ValueError(f"indices must be among the {P} that are known, got others: {others}")
    return place


def indexed(indices: Tensor, store: Store) -> Tensor:
    """Makes points of indices, (B, n); typed as the tensor (B, n, D) in whose place they stand."""
    return cast("Tensor", Points(indices, store))


def values(X: Tensor) -> Tensor:
    """Returns inputs as a tensor, (B, n, D), whether they are points or values."""
    return X.values() if isinstance(X, Points) else X


def raw(X: Tensor) -> Tensor:
    """Returns what a memory bank keeps of inputs: indices, (B, n), or the values themselves."""
    return X.indices if isinstance(X, Points) else X


def restore(tensor: Tensor, like: Tensor) -> Tensor:
    """Undoes `raw`: makes points of indices where `like` are points."""
    return indexed(tensor, like.store) if isinstance(like, Points) else tensor


def join(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenates inputs of one kind and store."""
    return restore(torch.cat([raw(part) for part in parts], dim=dim), parts[0])


@dataclass(frozen=True)
class TensorFields:
    """Data whose fields are tensors, all of them of the same tasks and points."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Returns the same with every tensor changed."""
        return replace(self, **{name: change(tensor) for name, tensor in vars(self).items()})

    @classmethod
    def join(cls, parts: Sequence[Self], dim: int = 0) -> Self:
        """Concatenates what is of one kind, by tasks (`dim` 0) or by points (1)."""
        fields = zip(*(vars(part).values() for part in parts), strict=True)
        return type(parts[0])(*(join(tensors, dim) for tensors in fields))


def map_inputs(embed: Embed, *sets: Tensor, part: int | None = PART) -> list[Tensor]:
    """Embeds sets of inputs, (B, n, D), as (B, n, features); of points of one store, each once."""
    if not isinstance(sets[0], Points):
        return [embed(X) for X in sets]
    indices = torch.cat([raw(X) for X in sets], dim=1)
    distinct, store = indices.unique(), sets[0].store
    parts = [embed(store(some)) for some in distinct.split(part or len(distinct))]
    together = Embeddings(distinct, torch.cat(parts))(indices)
    return list(together.split([X.shape[1] for X in sets], dim=1))


def check_dense(name: str, values: object) -> None:
    """Refuses tensors without values in rows of one length, before anything is asked of them."""
    if not isinstance(values, Tensor):
        return
    kinds = {"a nested": values.is_nested, "a sparse": values.layout != torch.strided}
    kinds |= {"a quantized": values.is_quantized, "a meta": values.is_meta}
    if wrong := [kind for kind, given in kinds.items() if given]:
        raise TypeError(f"{name} must be a dense tensor that holds values, got {wrong[0]} tensor")

"""The memory bank: a ring of snapshots from which NC is trained."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_complexity.files import read_json, write_json
from neural_complexity.points import raw, restore
from neural_complexity.snapshot import Snapshot

__all__ = ["MemoryBank"]

STATE = "bank.json"


@dataclass(frozen=True)
class _Layout:
    """Where each field stands in a row.

    Fields of one type stand side by side, so that drawing a row touches one place in memory, not
    six.
    """

    shapes: dict[str, tuple[int, ...]]  # by field
    dtypes: dict[str, torch.dtype]  # by field

    @classmethod
    def of(cls, fields: dict[str, Tensor]) -> "_Layout":
        shapes = {name: tuple(tensor.shape[1:]) for name, tensor in fields.items()}
        return cls(shapes, {name: tensor.dtype for name, tensor in fields.items()})

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "_Layout":
        shapes = {name: tuple(field["shape"]) for name, field in fields.items()}
        return cls(shapes, {name: getattr(torch, field["dtype"]) for name, field in fields.items()})

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"shape": list(shape), "dtype": _name(self.dtypes[name])}
            for name, shape in self.shapes.items()
        }

    def groups(self) -> dict[torch.dtype, list[str]]:
        """Returns the fields of each type, in order."""
        return {d: [n for n in self.shapes if self.dtypes[n] == d] for d in self.dtypes.values()}

    def widths(self) -> dict[torch.dtype, int]:
        """Returns how many numbers of each type a row has."""
        sizes = {name: torch.Size(shape).numel() for name, shape in self.shapes.items()}
        return {dtype: sum(sizes[n] for n in names) for dtype, names in self.groups().items()}

    def pack(self, fields: dict[str, Tensor]) -> dict[torch.dtype, Tensor]:
        """Joins fields (B, ...) to rows (B, width)."""
        return {
            dtype: torch.cat([fields[name].flatten(1) for name in names], dim=1)
            for dtype, names in self.groups().items()
        }

    def unpack(self, rows: dict[torch.dtype, Tensor]) -> dict[str, Tensor]:
        """Cuts rows (B, width) into fields (B, ...)."""
        fields = {}
        for dtype, names in self.groups().items():
            sizes = [torch.Size(self.shapes[name]).numel() for name in names]
            for name, part in zip(names, rows[dtype].split(sizes, dim=1), strict=True):
                fields[name] = part.reshape(-1, *self.shapes[name])
        return fields


class MemoryBank:
    """A preallocated ring of snapshots and their test targets; the newest `capacity` rows count.

    The bank keeps Y_te, from which the gap of any loss follows, beside the snapshot and never in
    it. Adding and sampling cost O(batch), whatever the capacity.

    Args:
        snapshot: Any snapshot of the kind to be stored; gives shapes and types, is not stored.
        Y_te: Its test targets, (B, N, C).
        like: Any inputs of the kind to be stored, if the snapshot has indices in their place: their
            store is what indices are of.
        capacity: How many rows count.
        slack: Further rows that physically stay. A bank on disk can be put back to any earlier
            count as long as at most `slack` rows were added since, which makes resuming exact.
        folder: Where to keep the rows, memory-mapped; in memory if `None`.

    Inputs that are `Points` are kept as indices.

    Raises:
        ValueError: If `capacity` is not positive or the folder already holds a bank.
        OSError: If the disk has no room for all rows: it is claimed now, not found out later.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        Y_te: Tensor,
        like: Tensor | None = None,
        *,
        capacity: int,
        slack: int = 0,
        folder: Path | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if slack < 0:
            raise ValueError(f"slack must not be negative, got {slack}")
        self._layout = _Layout.of(_fields(snapshot, Y_te))
        self._like = snapshot.X_tr if like is None else like
        self.capacity, self.slack, self.folder = capacity, slack, folder
        self.count = 0  # rows ever added
        self.dropped = 0  # rows refused because they were not finite
        self._rows = _allocate(self._layout.widths(), capacity + slack, folder)
        self.flush()

    @classmethod
    def open(
        cls, folder: Path, like: Tensor, *, count: int | None = None, dropped: int = 0
    ) -> "MemoryBank":
        """Opens a bank left on disk.

        Args:
            folder: Its folder.
            like: Any inputs of the kind that it holds; if they are `Points`, their store counts.
            count: The state to go back to; the last one flushed if `None`.
            dropped: Together with `count`, the rows refused by then.

        Raises:
            ValueError: If the folder holds no bank, a damaged one, or has gone too far past
                `count`.
        """
        if not (folder / STATE).is_file():
            raise ValueError(f"{folder} must hold a memory bank, got no {STATE} there")
        state = read_json(folder / STATE)
        bank = cls.__new__(cls)
        bank._like = like
        try:
            bank.folder, bank.capacity, bank.slack = folder, state["capacity"], state["slack"]
            bank.count, bank.dropped = state["count"], state["dropped"]
            bank._layout = _Layout.from_json(state["fields"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / STATE} must describe a bank, got no {error}") from None
        bank._rows = _map(folder, bank._layout.widths(), bank.capacity + bank.slack)
        if count is not None:
            if not 0 <= state["count"] - count <= bank.slack:
                raise ValueError(
                    f"{folder} must be at most {bank.slack} rows past {count}, got {state['count']}"
                )
            bank.count, bank.dropped = count, dropped
        return bank

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    def add(self, snapshot: Snapshot, Y_te: Tensor) -> int:
        """Stores one row per learner; rows that are not finite are refused and counted.

        A value whose fourth power overflows counts as not finite: Adam squares the gradients of
        what is itself a square.

        Args:
            snapshot: The learners as they are.
            Y_te: Test targets, (B, N, C).

        Returns:
            How many rows were stored.

        Raises:
            ValueError: If rows differ in shape or type from the bank's.
        """
        fields = {n: t.detach().to("cpu") for n, t in _fields(snapshot, Y_te).items()}
        for name, tensor in fields.items():
            shape, dtype = self._layout.shapes[name], self._layout.dtypes[name]
            if tensor.shape[1:] != shape or tensor.dtype != dtype:
                raise ValueError(
                    f"{name} must have rows of shape {shape} and {dtype}, "
                    f"got {tuple(tensor.shape[1:])} and {tensor.dtype}"
                )
        rows = self._layout.pack(fields)
        finite = torch.stack([_is_finite(part) for part in rows.values()]).all(dim=0)  # (B,)
        if not finite.all():
            rows = {dtype: part[finite] for dtype, part in rows.items()}
        stored = int(finite.sum())
        self.dropped += len(finite) - stored
        self._write(rows, stored)
        return stored

    def _write(self, rows: dict[torch.dtype, Tensor], stored: int) -> None:
        size = self.capacity + self.slack
        done = max(0, stored - size)  # rows that this very call would overwrite are skipped
        while done < stored:
            start = (self.count + done) % size
            run = min(stored - done, size - start)
            for dtype, part in rows.items():
                self._rows[dtype][start : start + run] = part[done : done + run]
            done += run
        self.count += stored

    def sample(
        self, batch: int, generator: torch.Generator, *, run: int = 1
    ) -> tuple[Snapshot, Tensor]:
        """Draws rows uniformly, with replacement.

        Args:
            batch: How many rows, B.
            generator: The source of randomness.
            run: How many rows are drawn together, one after another in the bank: where these are of
                one task, what does not depend on h is needed once for all of them.

        Returns:
            A snapshot of B learners and their test targets, (B, N, C).

        Raises:
            ValueError: If the bank is empty.
        """
        if self.count == 0:
            raise ValueError("the bank must hold rows before it can be sampled, got none")
        if batch < 1 or run < 1:
            raise ValueError(f"batch and run must be at least 1, got {batch} and {run}")
        first = torch.randint(len(self), (-(-batch // run),), generator=generator)
        age = (first[:, None] + torch.arange(run)).flatten()[:batch] % len(self)
        index = (self.count - 1 - age) % (self.capacity + self.slack)
        rows = {dtype: torch.index_select(part, 0, index) for dtype, part in self._rows.items()}
        fields = self._layout.unpack(rows)
        Y_te = fields.pop("Y_te")
        inputs = {name: restore(fields[name], self._like) for name in ("X_tr", "X_te")}
        return Snapshot(**{**fields, **inputs}), Y_te

    def flush(self) -> None:
        """Brings a bank on disk to a state that `open` finds; in memory it does nothing."""
        if self.folder is None:
            return
        for dtype in self._layout.widths():
            with (self.folder / _name(dtype)).open("rb") as file:
                os.fsync(file.fileno())  # also writes what was changed through the map
        content = {**self.state(), "fields": self._layout.to_json()}
        write_json(self.folder / STATE, content)

    def state(self) -> dict[str, int]:
        """Returns the counters that, with the rows on disk, are the bank."""
        return {
            "capacity": self.capacity,
            "slack": self.slack,
            "count": self.count,
            "dropped": self.dropped,
        }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _fields(snapshot: Snapshot, Y_te: Tensor) -> dict[str, Tensor]:
    return {name: raw(tensor) for name, tensor in snapshot.named().items()} | {"Y_te": Y_te}


def _is_finite(rows: Tensor) -> Tensor:
    """Returns for each row whether it, and what training makes of it, is finite, (B,)."""
    if not rows.is_floating_point():
        return torch.ones(len(rows), dtype=torch.bool)
    return rows.square().square().sum(dim=1).isfinite()


def _allocate(
    widths: dict[torch.dtype, int], size: int, folder: Path | None
) -> dict[torch.dtype, Tensor]:
    if folder is None:
        return {dtype: torch.zeros(size, width, dtype=dtype) for dtype, width in widths.items()}
    if (folder / STATE).exists():
        raise ValueError(f"{folder} must not hold a memory bank yet, got {STATE} there")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for dtype, width in widths.items():
            with (folder / _name(dtype)).open("wb") as file:
                # Written through a map, a full disk would kill the process without a word.
                os.posix_fallocate(file.fileno(), 0, size * width * dtype.itemsize)
    except OSError:
        for dtype in widths:
            (folder / _name(dtype)).unlink(missing_ok=True)
        raise
    return _map(folder, widths, size)


def _map(folder: Path, widths: dict[torch.dtype, int], size: int) -> dict[torch.dtype, Tensor]:
    rows = {}
    for dtype, width in widths.items():
        length, path = size * width * dtype.itemsize, folder / _name(dtype)
        if not path.is_file() or path.stat().st_size != length:
            raise ValueError(f"{path} must be a file of {length} bytes, got another size or none")
        whole = torch.from_file(str(path), shared=True, size=size * width, dtype=dtype)
        rows[dtype] = whole.view(size, width)
    return rows

"""The memory bank: a ring of snapshots from which NC is trained."""

import os
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor, TensorDict
from torch import Tensor

from neural_complexity.files import read_json, write_json
from neural_complexity.snapshot import Snapshot

__all__ = ["MemoryBank"]

FIELDS = ("X_tr", "Y_tr", "H_tr", "X_te", "H_te", "Y_te")
STATE = "bank.json"


class MemoryBank:
    """A preallocated ring of snapshots and their test targets; the newest `capacity` rows count.

    The bank keeps Y_te, from which the gap of any loss follows, beside the snapshot and never in
    it. Adding and sampling cost O(batch), whatever the capacity.

    Args:
        snapshot: Any snapshot of the kind to be stored; gives shapes and types, is not stored.
        Y_te: Its test targets, (B, N, C).
        capacity: How many rows count.
        slack: Further rows that physically stay. A bank on disk can be put back to any earlier
            count as long as at most `slack` rows were added since, which makes resuming exact.
        folder: Where to keep the rows, memory-mapped; in memory if `None`.

    Raises:
        ValueError: If `capacity` is not positive or the folder already holds a bank.
        OSError: If the disk has no room for all rows: it is claimed now, not found out later.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        Y_te: Tensor,
        *,
        capacity: int,
        slack: int = 0,
        folder: Path | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if slack < 0:
            raise ValueError(f"slack must not be negative, got {slack}")
        shapes = {name: tuple(t.shape[1:]) for name, t in _fields(snapshot, Y_te).items()}
        dtypes = {name: t.dtype for name, t in _fields(snapshot, Y_te).items()}
        self.capacity, self.slack, self.folder = capacity, slack, folder
        self.count = 0  # rows ever added
        self.dropped = 0  # rows refused because they were not finite
        self._rows = _allocate(shapes, dtypes, capacity + slack, folder)
        self.flush()

    @classmethod
    def open(cls, folder: Path, *, count: int | None = None, dropped: int = 0) -> "MemoryBank":
        """Opens a bank left on disk.

        Args:
            folder: Its folder.
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
        bank.folder, bank.capacity, bank.slack = folder, state["capacity"], state["slack"]
        bank.count, bank.dropped = state["count"], state["dropped"]
        bank._rows = _map(folder, state["fields"], bank.capacity + bank.slack)
        if count is not None:
            if state["count"] - count > bank.slack:
                raise ValueError(
                    f"{folder} must be at most {bank.slack} rows past {count}, got {state['count']}"
                )
            bank.count, bank.dropped = count, dropped
        return bank

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    def add(self, snapshot: Snapshot, Y_te: Tensor) -> int:
        """Stores one row per learner; rows that are not finite are refused and counted.

        A value whose square overflows counts as not finite: its loss would be.

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
            row = self._rows.get(name)
            if tensor.shape[1:] != row.shape[1:] or tensor.dtype != row.dtype:
                raise ValueError(
                    f"{name} must have rows of shape {tuple(row.shape[1:])} and {row.dtype}, "
                    f"got {tuple(tensor.shape[1:])} and {tensor.dtype}"
                )
        finite = torch.stack([_is_finite(t) for t in fields.values()]).all(dim=0)  # (B,)
        if not finite.all():
            fields = {name: tensor[finite] for name, tensor in fields.items()}
        stored = int(finite.sum())
        self.dropped += len(finite) - stored
        self._write(fields, stored)
        return stored

    def _write(self, fields: dict[str, Tensor], stored: int) -> None:
        size = self.capacity + self.slack
        skipped = max(0, stored - size)  # rows that this very call would overwrite
        done = skipped
        while done < stored:
            start = (self.count + done) % size
            run = min(stored - done, size - start)
            for name, tensor in fields.items():
                self._rows.get(name)[start : start + run] = tensor[done : done + run]
            done += run
        self.count += stored

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Snapshot, Tensor]:
        """Draws rows uniformly, with replacement.

        Args:
            batch: How many rows, B.
            generator: The source of randomness.

        Returns:
            A snapshot of B learners and their test targets, (B, N, C).

        Raises:
            ValueError: If the bank is empty.
        """
        if self.count == 0:
            raise ValueError("the bank must hold rows before it can be sampled, got none")
        age = torch.randint(len(self), (batch,), generator=generator)
        index = (self.count - 1 - age) % (self.capacity + self.slack)
        rows = {name: torch.index_select(self._rows.get(name), 0, index) for name in FIELDS}
        Y_te = rows.pop("Y_te")
        return Snapshot(**rows), Y_te

    def flush(self) -> None:
        """Brings a bank on disk to a state that `open` finds; in memory it does nothing."""
        if self.folder is None:
            return
        fields = {
            name: {"shape": list(t.shape[1:]), "dtype": str(t.dtype).removeprefix("torch.")}
            for name, t in self._rows.items()
        }
        write_json(self.folder / STATE, {**self.state(), "fields": fields})

    def state(self) -> dict[str, int]:
        """Gives the counters that, with the rows on disk, are the bank."""
        return {
            "capacity": self.capacity,
            "slack": self.slack,
            "count": self.count,
            "dropped": self.dropped,
        }


def _fields(snapshot: Snapshot, Y_te: Tensor) -> dict[str, Tensor]:
    return {**{name: getattr(snapshot, name) for name in FIELDS[:-1]}, "Y_te": Y_te}


def _is_finite(tensor: Tensor) -> Tensor:
    """Tells for each row whether its sum of squares is finite, (B,)."""
    if not tensor.is_floating_point():
        return torch.ones(len(tensor), dtype=torch.bool)
    return tensor.flatten(1).square().sum(dim=1).isfinite()


def _allocate(
    shapes: dict[str, tuple[int, ...]],
    dtypes: dict[str, torch.dtype],
    size: int,
    folder: Path | None,
) -> TensorDict:
    if folder is None:
        rows = {name: torch.zeros(size, *shapes[name], dtype=dtypes[name]) for name in FIELDS}
        return TensorDict(rows, batch_size=[size])
    if (folder / STATE).exists():
        raise ValueError(f"{folder} must not hold a memory bank yet, got {STATE} there")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name in FIELDS:
            length = size * dtypes[name].itemsize * torch.Size(shapes[name]).numel()
            with (folder / name).open("wb") as file:
                # Written through a map, a full disk would kill the process without a word.
                os.posix_fallocate(file.fileno(), 0, length)
    except OSError:
        for name in FIELDS:
            (folder / name).unlink(missing_ok=True)
        raise
    return _map(
        folder,
        {
            name: {"shape": list(shapes[name]), "dtype": str(dtypes[name]).removeprefix("torch.")}
            for name in FIELDS
        },
        size,
    )


def _map(folder: Path, fields: dict[str, Any], size: int) -> TensorDict:
    rows = {}
    for name in FIELDS:
        dtype = getattr(torch, fields[name]["dtype"])
        shape = torch.Size([size, *fields[name]["shape"]])
        length, path = shape.numel() * dtype.itemsize, folder / name
        if not path.is_file() or path.stat().st_size != length:
            raise ValueError(f"{path} must be a file of {length} bytes, got another size or none")
        rows[name] = MemoryMappedTensor.from_filename(path, dtype, shape)
    return TensorDict(rows, batch_size=[size])

"""The memory bank: a ring of snapshots from which NC is trained."""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neural_complexity import files
from neural_complexity.files import CHECKSUM, name_file, read_json, write_json
from neural_complexity.points import raw, restore
from neural_complexity.snapshot import Snapshot
from neural_complexity.tasks.families import check_sizes

__all__ = ["Arrays", "Collection", "MemoryBank", "from_arrays", "to_arrays"]

Collection = tuple[Snapshot, Tensor]  # rows for the bank and their Y_te, (B, N, C)
Arrays = dict[str, np.ndarray]  # the same by name, of which `Points` are their indices
STATE, ROWS = "bank.json", "rows"  # the files of a bank on disk
KEYS = {"capacity", "slack", "count", "dropped", "fields"}  # of the state
FIELDS = {*(field.name for field in fields(Snapshot)), "Y_te"}  # of a row
BLOCK = 4096  # rows that are verified at a time: bounds memory


def to_arrays(snapshot: Snapshot, Y_te: Tensor) -> Arrays:
    """Returns what a bank keeps and processes send each other."""
    # Tensors would travel through shared memory, which dies with the process that sent them.
    tensors = {**vars(snapshot), "Y_te": Y_te}
    return {name: raw(tensor).detach().cpu().numpy() for name, tensor in tensors.items()}


def from_arrays(arrays: Arrays, like: Tensor | None = None) -> Collection:
    """Undoes `to_arrays`; indices stay indices but where inputs that are `like` them are given."""
    # What came from another process may be read-only.
    own = {name: np.require(array, requirements="W") for name, array in arrays.items()}
    tensors = {name: torch.from_numpy(array) for name, array in own.items()}
    Y_te = tensors.pop("Y_te")
    if like is not None:
        tensors |= {name: restore(tensors[name], like) for name in ("X_tr", "X_te")}
    return Snapshot(**tensors), Y_te


class MemoryBank:
    """A preallocated ring of snapshots and their test targets; the newest `capacity` rows count.

    The bank keeps Y_te, from which the gap of any loss follows, beside the snapshot and never in
    it. Adding and sampling cost O(batch), whatever the capacity. `Points` are kept as indices.

    The first snapshot and Y_te, (B, N, C), give shapes and types, and are not stored; `like` are
    inputs whose store indices are of, if the snapshot has indices in their place. Further `slack`
    rows physically stay: a bank on disk can be put back to any earlier count as long as at most so
    many rows were added since, which makes resuming exact. With a folder, rows are memory-mapped,
    and each has a checksum for `verify`.
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
        check_sizes(capacity=capacity)
        if slack < 0:
            raise ValueError(f"slack must not be negative, got {slack}")
        self._like = snapshot.X_tr if like is None else like
        self.capacity, self.slack, self.folder = capacity, slack, folder
        self.count = 0  # rows ever added
        self.dropped = 0  # rows refused because they were not finite
        kinds = [(n, a.dtype, a.shape[1:]) for n, a in to_arrays(snapshot, Y_te).items()]
        kinds += [] if folder is None else [(CHECKSUM, np.dtype(np.uint32), ())]
        # The fields of a row stand side by side: drawing one touches one place in memory, not six.
        dtype = np.dtype(kinds, align=True)
        if folder is None:
            self._rows: np.ndarray = np.zeros(capacity + slack, dtype)
            return
        if (folder / STATE).exists():
            raise ValueError(f"{folder} must not hold a memory bank yet, got {STATE} there")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with (folder / ROWS).open("wb") as file:
                length = (capacity + slack) * dtype.itemsize
                # Written through a map, a full disk would kill the process without a word.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, length)
                else:  # macOS
                    file.truncate(length)
        except OSError as error:
            (folder / ROWS).unlink()
            name_file(error, folder / ROWS)
            raise
        self._rows = np.memmap(folder / ROWS, dtype, "r+")
        self.flush()

    @classmethod
    def open(
        cls, folder: Path, like: Tensor, earlier: dict[str, int] | None = None
    ) -> "MemoryBank":
        """Opens a bank of inputs `like` these on disk, as last flushed or in an earlier `state`."""
        bank, path = cls.__new__(cls), folder / STATE
        if not path.is_file():
            raise ValueError(f"{folder} must hold a memory bank, got no {STATE} there")
        state = read_json(path)
        if (expected := state.pop(CHECKSUM, None)) is not None:  # earlier versions wrote none
            files.verify(str(path), expected, _checksum(state))
        named = {*state, *(state.get("fields") or ())} - {CHECKSUM}
        if odd := sorted(named ^ (KEYS | FIELDS)):  # also where the checksum lost its name
            raise ValueError(f"{path} must describe a bank, got no or another {odd[0]}")
        bank.folder, bank._like = folder, like
        try:
            bank.capacity, bank.slack = state["capacity"], state["slack"]
            bank.count, bank.dropped = state["count"], state["dropped"]
            kinds = [(n, f["dtype"], tuple(f["shape"])) for n, f in state["fields"].items()]
            dtype = np.dtype(kinds, align=True)
            length = (bank.capacity + bank.slack) * dtype.itemsize
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / STATE} must describe a bank, got no {error}") from None
        path = folder / ROWS
        if not path.is_file() or path.stat().st_size != length:
            raise ValueError(f"{path} must be a file of {length} bytes, got another size or none")
        bank._rows = np.memmap(path, dtype, "r+")
        if earlier is not None:
            if not 0 <= bank.count - earlier["count"] <= bank.slack:
                told = f"{folder} must be at most {bank.slack} rows past {earlier['count']}"
                raise ValueError(f"{told}, got {bank.count}")
            bank.count, bank.dropped = earlier["count"], earlier["dropped"]
        return bank

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    def add(self, snapshot: Snapshot, Y_te: Tensor) -> int:
        """Stores one row per learner and returns how many; what is not finite is refused, counted.

        A value whose fourth power overflows counts as not finite: Adam squares the gradients of
        what is itself a square.
        """
        arrays, dtype, size = to_arrays(snapshot, Y_te), self._rows.dtype, len(self._rows)
        rows = np.zeros(len(snapshot), dtype)  # also between the fields, for the checksum
        for name, array in arrays.items():
            kind = dtype[name]
            if (array.shape[1:], array.dtype) != (kind.shape, kind.base):
                told = f"{name} must have rows of shape {kind.shape} and torch.{kind.base}"
                raise ValueError(f"{told}, got {array.shape[1:]} and torch.{array.dtype}")
            rows[name] = array
        floats = [torch.from_numpy(a).flatten(1) for a in arrays.values() if a.dtype.kind == "f"]
        finite = torch.cat(floats, dim=1).square_().square_().sum(dim=1).isfinite()  # (B,)
        stored = int(finite.sum())
        self.count, self.dropped = self.count + stored, self.dropped + len(rows) - stored
        rows = (rows if stored == len(rows) else rows[finite.numpy()])[-size:]  # the newest
        numbers = np.arange(self.count - len(rows), self.count)
        if CHECKSUM in (dtype.names or ()):
            rows[CHECKSUM] = _checksums(rows, numbers)
        # Unlike an assignment, this copies each row as a whole, which is faster.
        np.put(self._rows, numbers % size, rows)
        return stored

    def sample(self, batch: int, generator: torch.Generator, *, run: int = 1) -> Collection:
        """Draws B rows uniformly, with replacement: a snapshot and its test targets, (B, N, C).

        `run` rows are drawn together, one after another in the bank: where these are of one task,
        what does not depend on h is needed once for all of them.
        """
        check_sizes(batch=batch, run=run)
        if self.count == 0:
            raise ValueError("the bank must hold rows before it can be sampled, got none")
        first = torch.randint(len(self), (-(-batch // run),), generator=generator)
        age = (first[:, None] + torch.arange(run)).flatten()[:batch] % len(self)
        rows = np.take(self._rows, ((self.count - 1 - age) % len(self._rows)).numpy())
        names = set(rows.dtype.names or ()) - {CHECKSUM}
        return from_arrays({name: rows[name] for name in names}, self._like)

    def flush(self) -> None:
        """Brings a bank on disk to a state that `open` finds; in memory it does nothing."""
        if self.folder is None or not isinstance(self._rows, np.memmap):
            return
        self._rows.flush()
        kinds = {name: self._rows.dtype[name] for name in self._rows.dtype.names or ()}
        fields = {n: {"shape": k.shape, "dtype": k.base.name} for n, k in kinds.items()}
        content = {**self.state(), "fields": fields}
        write_json(self.folder / STATE, {**content, CHECKSUM: _checksum(content)})

    def refresh(self) -> None:
        """Sees what another process, which adds to this bank on disk, had added when it flushed.

        Several processes may sample a bank that one fills. None sees a row half-written as long as
        at most `slack` rows are added between two times that it does this.
        """
        assert self.folder is not None, "only a bank on disk is shared"
        self.follow(read_json(self.folder / STATE))

    def follow(self, state: Mapping[str, int]) -> None:
        """Sees as many rows as the `state` of another process, which adds to this bank, says."""
        self.count, self.dropped = state["count"], state["dropped"]

    @property
    def row_bytes(self) -> int:
        """What a row takes, in memory or on disk."""
        return self._rows.dtype.itemsize

    def state(self) -> dict[str, int]:
        """Returns the counters that, with the rows on disk, are the bank."""
        return {name: getattr(self, name) for name in ("capacity", "slack", "count", "dropped")}

    def verify(self) -> None:
        """Reads all rows that can be drawn, and refuses those that are not as they were written."""
        for start in range(self.count - len(self), self.count, BLOCK):
            numbers = np.arange(start, min(start + BLOCK, self.count))
            rows = np.take(self._rows, numbers % len(self._rows))
            if CHECKSUM not in (rows.dtype.names or ()):
                return
            expected, found = rows[CHECKSUM], _checksums(rows, numbers)
            for place in np.flatnonzero(expected != found):
                what = f"row {numbers[place] % len(self._rows)} of {self.folder}/{ROWS}"
                files.verify(what, f"{expected[place]:08x}", f"{found[place]:08x}")


def _checksum(content: Any) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _checksums(rows: np.ndarray, numbers: Iterable[int]) -> np.ndarray:
    """Returns the checksum of each row and its number, without which an older row would do, too."""
    assert rows.dtype.fields is not None
    bits = rows.view(np.uint8).reshape(len(rows), -1)[:, : rows.dtype.fields[CHECKSUM][1]]
    pairs = zip(bits, numbers, strict=True)
    return np.array([zlib.crc32(row, int(number)) for row, number in pairs], dtype=np.uint32)

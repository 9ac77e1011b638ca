"""Which labelled points were consumed, and for what, so that no leak goes unnoticed."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from torch import Tensor

from neural_complexity.points import Points, Store, values
from neural_complexity.task import Task

__all__ = ["Ledger", "choosing", "record", "record_known", "record_task", "recording"]

# Labels of a point taught NC or a baseline; chose between networks, strengths or times to stop;
# trained a learner; are NC's own measure of itself; or are what results were computed from.
Role = Literal["learn", "choose", "train", "hold", "report"]
# Where tasks are of one dataset, learners may not see what is reported on in any task.
DISJOINT = {(a, b) for a in ("learn", "choose") for b in ("hold", "report")}
IN_ONE_DATASET = {("train", "report"), ("learn", "choose")}
_ledger: ContextVar["Ledger | None"] = ContextVar("ledger", default=None)
_choosing: ContextVar[bool] = ContextVar("choosing", default=False)


def record(role: Role, X: Tensor, Y: Tensor) -> None:
    """Notes a use of labelled points, (B, n, ...); what is measured while `choosing` chooses."""
    if ledger := _ledger.get():  # nobody pays for more than this look unless one is open
        measured = role in ("hold", "report")
        ledger.add("choose" if measured and _choosing.get() else role, X, Y)


def record_task(role: Role, task: Task) -> None:
    """Notes that the training and test points of tasks are consumed."""
    record(role, task.X_tr, task.Y_tr)
    record(role, task.X_te, task.Y_te)


def record_known(knows: Callable[[Tensor], Tensor]) -> None:
    """Notes that an NC comes from elsewhere, with what says which points, (n, ...), taught it."""
    if ledger := _ledger.get():
        ledger.known.append(knows)


@contextmanager
def recording() -> Iterator["Ledger"]:
    """Opens a ledger for everything within."""
    token = _ledger.set(ledger := Ledger())
    try:
        yield ledger
    finally:
        _ledger.reset(token)


@contextmanager
def choosing() -> Iterator[None]:
    """Says that what is measured within is not reported, but decides between alternatives."""
    token = _choosing.set(True)
    try:
        yield
    finally:
        _choosing.reset(token)


class Ledger:
    """The fingerprints of consumed points by role.

    A point is its input in single precision. Real targets count as well: tasks may share inputs. A
    label does not, since the same image has another one in another task.
    """

    def __init__(self) -> None:
        self.known: list[Callable[[Tensor], Tensor]] = []
        self._prints: dict[Role, set[bytes]] = {}
        self._indices: dict[Role, dict[int, tuple[Store, set[int]]]] = {}
        self._last: dict[Role, tuple[object, object]] = {}
        self._leaked = 0  # reported points that NCs from elsewhere know

    def add(self, role: Role, X: Tensor, Y: Tensor) -> None:
        """Notes points; see `record`."""
        last_X, last_Y = self._last.get(role, (None, None))
        if last_X is X and last_Y is Y:
            return  # another step on the same points
        self._last[role] = X, Y
        if role == "report" and self.known:
            points = values(X).flatten(0, 1)
            self._leaked += sum(int(knows(points).sum()) for knows in self.known)
        if isinstance(X, Points):
            # Looked up when all is over, and then once.
            _, seen = self._indices.setdefault(role, {}).setdefault(id(X.store), (X.store, set()))
            seen.update(X.indices.unique().tolist())
        else:
            self._prints.setdefault(role, set()).update(_prints(X, Y))

    def points(self, role: Role) -> set[bytes]:
        """Returns the fingerprints of the points that had a role."""
        found = set(self._prints.get(role, ()))
        for store, indices in self._indices.get(role, {}).values():
            for some in torch.tensor(sorted(indices), dtype=torch.int64).split(4096):
                found |= _prints(store(some)[None], some[None])
        return found

    def leaks(self, *, one_dataset: bool = False, chance: int = 0) -> list[str]:
        """Returns, in sentences, which exclusive roles share more points than chance explains."""
        points = {role: self.points(role) for role in get_args(Role)}
        found = []
        for a, b in sorted(DISJOINT | (IN_ONE_DATASET if one_dataset else set())):
            if (shared := len(points[a] & points[b])) > chance:
                found.append(f"{shared} points were there to {a} and to {b}")
        if self._leaked:
            found.append(f"{self._leaked} points were there to report, and known to an NC")
        return found


def _prints(X: Tensor, Y: Tensor) -> set[bytes]:
    """Returns the fingerprints of points, (B, n, ...)."""
    parts = [X, Y] if Y.is_floating_point() else [X]
    rows = torch.cat([p.detach().cpu().float().flatten(0, 1).flatten(1) for p in parts], dim=1)
    return {hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows.numpy()}

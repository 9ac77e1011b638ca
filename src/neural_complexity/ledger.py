"""Which labelled points were consumed, and for what, so that no leak goes unnoticed.

Recording costs nothing but a look at a context variable unless a ledger is open.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor

from neural_complexity.points import Points, Store
from neural_complexity.task import Task

__all__ = ["Ledger", "Role", "choosing", "record", "record_task", "recording"]

# Labels of a point taught NC or a baseline; chose between networks, weights or times to stop;
# trained a learner; or are what reported numbers were computed from.
Role = Literal["learn", "choose", "train", "report"]
_ledger: ContextVar["Ledger | None"] = ContextVar("ledger", default=None)
_choosing: ContextVar[bool] = ContextVar("choosing", default=False)


def record(role: Role, X: Tensor, Y: Tensor) -> None:
    """Notes that labelled points are consumed.

    Args:
        role: What for; what is reported while `choosing` is open chooses.
        X: Inputs, (B, n, ...).
        Y: Targets, (B, n, C), or labels, (B, n).
    """
    ledger = _ledger.get()
    if ledger is not None:
        ledger.add("choose" if role == "report" and _choosing.get() else role, X, Y)


def record_task(role: Role, task: Task) -> None:
    """Notes that the training and test points of tasks are consumed."""
    record(role, task.X_tr, task.Y_tr)
    record(role, task.X_te, task.Y_te)


@contextmanager
def recording() -> Iterator["Ledger"]:
    """Opens a ledger that everything within is noted in."""
    ledger = Ledger()
    token = _ledger.set(ledger)
    try:
        yield ledger
    finally:
        _ledger.reset(token)


@contextmanager
def choosing() -> Iterator[None]:
    """Says that what is measured within is not reported but decides between alternatives."""
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
        self._prints: dict[Role, set[bytes]] = {}
        self._indices: dict[Role, dict[int, tuple[Store, set[int]]]] = {}
        self._last: dict[Role, tuple[object, object]] = {}

    def add(self, role: Role, X: Tensor, Y: Tensor) -> None:
        """Notes points; see `record`."""
        if self._last.get(role, (None, None))[0] is X and self._last[role][1] is Y:
            return  # another step on the same points
        self._last[role] = (X, Y)
        if isinstance(X, Points):
            # Looked up when all is over, and then once.
            _, known = self._indices.setdefault(role, {}).setdefault(id(X.store), (X.store, set()))
            known.update(X.indices.unique().tolist())
        else:
            self._prints.setdefault(role, set()).update(_prints(X, Y))

    def points(self, role: Role) -> set[bytes]:
        """Returns the fingerprints of the points that had a role."""
        found = set(self._prints.get(role, ()))
        for store, indices in self._indices.get(role, {}).values():
            for some in torch.tensor(sorted(indices), dtype=torch.int64).split(4096):
                found |= _prints(store(some)[None], some[None])
        return found

    def check(self, *, learners: bool = True) -> None:
        """Checks that nothing reported on was consumed otherwise.

        Args:
            learners: Whether learners' own training points count, which in few-shot tasks may be
                the test points of other tasks.

        Raises:
            AssertionError: If a reported point taught, chose or trained something.
        """
        reported = self.points("report")
        roles: tuple[Role, ...] = ("learn", "choose", "train") if learners else ("learn", "choose")
        for role in roles:
            shared = len(reported & self.points(role))
            if shared:
                raise AssertionError(
                    f"no point that is reported on may be there to {role}, got {shared} of "
                    f"{len(reported)}"
                )


def _prints(X: Tensor, Y: Tensor) -> set[bytes]:
    """Returns the fingerprints of points, (B, n, ...)."""
    rows = X.detach().cpu().float().flatten(0, 1).flatten(1)
    if Y.is_floating_point():
        rows = torch.cat([rows, Y.detach().cpu().float().flatten(0, 1).flatten(1)], dim=1)
    content = rows.contiguous().numpy()
    return {hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in content}

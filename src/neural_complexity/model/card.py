"""What NC's file knows about how NC was made, as typed fields."""

import base64
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CONTEXT_SIZE", "Card", "HeldOutReport", "checksums"]

CONTEXT_SIZE = 256  # training points that an NC sees at once if its file does not say
# Fields whose names in files are older than those here.
IN_FILES = {"fingerprint": "identity", "context_size": "shown"}


@dataclass(frozen=True, kw_only=True)
class HeldOutReport:
    """How well NC predicts the gaps of learners that it was not trained on."""

    learners: int = 0
    verdict: str = ""
    beats_the_mean_gap: bool = False
    r2: float | None = None
    r2_ci95: float | None = None
    correlation: float | None = None
    mean_error: float | None = None
    mean_error_of_the_mean_gap: float | None = None
    bias: float | None = None
    slope: float | None = None
    coverage_95: float | None = None
    mean_gap: float | None = None
    kinds: tuple[dict[str, Any], ...] = ()  # scores of thirds of the learners, for display

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that are known, as JSON has them."""
        return {n: v for n, v in {**asdict(self), "kinds": list(self.kinds)}.items() if v != []}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "HeldOutReport":
        """Reads what `to_json` returned."""
        known = {f.name for f in fields(cls)}
        own = {name: value for name, value in values.items() if name in known}
        if not isinstance(own.get("verdict", ""), str):
            raise TypeError(f"the verdict is of type {type(own['verdict']).__name__}")
        return cls(**{**own, "kinds": tuple(own.get("kinds", ()))})


@dataclass(frozen=True, kw_only=True)
class Card:
    """How NC was made and what it is used to, saved with its weights."""

    context_size: int = CONTEXT_SIZE
    """How many training points NC is used to see at once."""
    classes: tuple[str | int | float, ...] | None = None
    """What the labels 0, 1, ... were called, if NC knows."""
    report: HeldOutReport = HeldOutReport()
    """Scores on held-out learners; of none, if there were no such learners."""
    belief_loss: float | None = None
    """What the beliefs themselves cost on points that NC did not learn from."""
    learned_from: str = ""
    """Checksums of the points that NC learned from; see `checksums`."""
    fingerprint: str = ""
    """Of all that decided the result, but the plan."""
    plan: dict[str, int] = field(default_factory=dict)
    """The fields of the `Plan` that NC was meta-learned by."""
    commit: str | None = None
    """The commit of the code that made it."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What else there is to know (seed, config, seconds, ...); nothing depends on it."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that are known, by their names in files."""
        default = Card()
        own = {
            IN_FILES.get(f.name, f.name): getattr(self, f.name)
            for f in fields(self)
            if f.name != "notes" and getattr(self, f.name) != getattr(default, f.name)
        }
        if self.classes is not None:
            own["classes"] = list(self.classes)
        if "report" in own:
            own["report"] = self.report.to_json()
        return {**self.notes, **own}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Card":
        """Reads what `to_json` returned.

        Raises:
            TypeError: If a field is of another type.
            ValueError: If a field has an impossible value.
        """
        if not isinstance(values, dict):
            raise TypeError(f"the provenance is of type {type(values).__name__}")
        names = {IN_FILES.get(f.name, f.name): f.name for f in fields(cls) if f.name != "notes"}
        own = {names[name]: value for name, value in values.items() if name in names}
        notes = {name: value for name, value in values.items() if name not in names}
        if "classes" in own and own["classes"] is not None:
            own["classes"] = tuple(own["classes"])
        if "report" in own:
            own["report"] = HeldOutReport.from_json(dict(own["report"]))
        card = cls(**own, notes=notes)
        if not isinstance(card.context_size, int) or card.context_size < 1:
            raise ValueError(f"the context size is {card.context_size}")
        card._checksums()
        return card

    def remember(self, parts: Iterable[Tensor]) -> str:
        """Returns `learned_from` for points, (points, ...) each part, as NC sees them."""
        sums = np.unique(np.concatenate([checksums(part) for part in parts]))
        return base64.b64encode(sums.astype("<u4").tobytes()).decode()

    def knows(self, X: Tensor) -> Tensor:
        """Returns for points, (points, ...), whether NC learned from them, (points,).

        Only an NC that was meta-learned from splits of one dataset knows. It recognises inputs with
        the same numbers in single precision; of others, one in 2^32 / n is mistaken for one of the
        n that it learned from. Inputs that were scaled in another way are not recognised.
        """
        if not self.learned_from:
            return torch.zeros(len(X), dtype=torch.bool, device=X.device)
        return torch.from_numpy(np.isin(checksums(X), self._checksums())).to(X.device)

    def _checksums(self) -> NDArray[np.uint32]:
        return np.frombuffer(base64.b64decode(self.learned_from), dtype="<u4")


def checksums(X: Tensor) -> NDArray[np.uint32]:
    """Returns a checksum of four bytes for each point of (points, ...).

    It does not say what a point is, but whether one that is at hand was among them; of one or two
    features, or of few values, all can be tried. Who shares an NC and does not want that removes
    them: `nc.card = dataclasses.replace(nc.card, learned_from="")`.
    """
    rows = np.ascontiguousarray(X.detach().cpu().float().flatten(1).numpy())
    rows = rows + 0.0  # there are two zeros, but one number
    return np.array([zlib.crc32(row) for row in rows], dtype=np.uint32)

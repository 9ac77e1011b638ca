"""NC's files, format version 2, and what they say about how NC was made."""

import base64
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from neural_complexity import ledger
from neural_complexity.files import check_types, read_tensors, write_tensors
from neural_complexity.model.architecture import Architecture
from neural_complexity.reliability.calibration import Calibration, features_of

if TYPE_CHECKING:
    from neural_complexity.model.network import NeuralComplexity

__all__ = ["CONTEXT_SIZE", "Card", "HeldOutReport", "header", "read_nc", "write_nc"]

CONTEXT_SIZE = 256  # training points that an NC sees at once if its file does not say
# Fields whose names in files are older than those here.
IN_FILES = {"fingerprint": "identity", "context_size": "shown"}
FORMAT, VERSION = "neural-complexity", "2"
KEYS = {"format", "version", "architecture", "provenance", "calibration"}  # of the header
READABLE = ("1", VERSION)  # version 1 knew no calibration
CALIBRATED = "calibration."  # what the names of a calibration's tensors start with
# What a report says of a third of the learners.
KIND = {"what": str, "learners": int, "from": float, "to": float, "mean_error": float}
KIND |= {"bias": float}
# Layers that an architecture may have of a kind that it does not use.
UNUSED = 64
UNITS = ("x_scale", "y_scale")
NOT_NEGATIVE = (*UNITS, "variance", "running_var")  # how the names of such tensors end
# What a damaged file can lead to.
DAMAGE = (AttributeError, ArithmeticError, LookupError, TypeError, RuntimeError, ValueError)


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
        """Reads what `to_json` returned; refuses fields of other types."""
        check_types(cls.__annotations__, values)
        own = {f.name: values[f.name] for f in fields(cls) if f.name in values}
        for kind in own.get("kinds", ()):
            check_types(KIND, {name: kind[name] for name in KIND})
        return cls(**own | {"kinds": tuple(own.get("kinds", ()))})


@dataclass(frozen=True, kw_only=True)
class Card:
    """How NC was made and what it is used to, saved with its weights."""

    context_size: int = CONTEXT_SIZE  # training points that NC is used to see at once
    classes: tuple[str | int | float, ...] | None = None  # names of the labels 0, 1, ..., if known
    report: HeldOutReport = HeldOutReport()  # on held-out learners, if there were any
    belief_loss: float | None = None  # what beliefs cost on points that NC did not learn from
    # Checksums of the points that NC learned from: whoever has a point, or can try all, learns
    # whether it was one. `nc.card = dataclasses.replace(nc.card, learned_from="")` removes them.
    learned_from: str = ""
    fingerprint: str = ""  # of all that decided the result, but the plan
    plan: dict[str, int] = field(default_factory=dict)  # fields of the `Plan` of meta-learning
    commit: str | None = None  # of the code that made it
    # What else there is to know (seed, config, seconds, ...); nothing depends on it.
    notes: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that are known, by their names in files."""
        given = {n: v for n, v in vars(self).items() if v != getattr(Card(), n) and n != "notes"}
        if self.classes is not None:
            given["classes"] = list(self.classes)
        if "report" in given:
            given["report"] = self.report.to_json()
        return {**self.notes, **{IN_FILES.get(n, n): v for n, v in given.items()}}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Card":
        """Reads what `to_json` returned; refuses fields of other types or impossible values."""
        names = {IN_FILES.get(f.name, f.name): f.name for f in fields(cls) if f.name != "notes"}
        own = {names[n]: value for n, value in dict(values).items() if n in names}
        check_types(cls.__annotations__, own)
        if own.get("classes") is not None:
            own["classes"] = tuple(own["classes"])
            if len(set(own["classes"])) < len(own["classes"]):
                raise ValueError("classes must be different, got one twice")
        if "report" in own:
            own["report"] = HeldOutReport.from_json(own["report"])
        card = cls(**own, notes={n: value for n, value in values.items() if n not in names})
        if card.context_size < 1:
            raise ValueError(f"the context size must be at least 1, got {card.context_size}")
        card._known()
        return card

    def remember(self, parts: Iterable[Tensor]) -> str:
        """Returns `learned_from` for points, (points, ...) each part, as NC sees them."""
        sums = np.unique(np.concatenate([_checksums(part) for part in parts]))
        return base64.b64encode(sums.astype("<u4").tobytes()).decode()

    def knows(self, X: Tensor) -> Tensor:
        """Returns for points, (points, ...), whether NC learned from them, (points,).

        Only an NC that was meta-learned from splits of one dataset knows, by the numbers in single
        precision, in the same scale; one in 2^32 / n others is mistaken for one of its n points.
        """
        if not self.learned_from:
            return torch.zeros(len(X), dtype=torch.bool, device=X.device)
        return torch.from_numpy(np.isin(_checksums(X), self._known())).to(X.device)

    def _known(self) -> NDArray[np.uint32]:
        return np.frombuffer(base64.b64decode(self.learned_from, validate=True), dtype="<u4")


def _checksums(X: Tensor) -> NDArray[np.uint32]:
    rows = np.ascontiguousarray(X.detach().cpu().float().flatten(1).numpy())
    rows = rows + 0.0  # there are two zeros, but one number
    return np.array([zlib.crc32(row) for row in rows], dtype=np.uint32)


def header(nc: "NeuralComplexity") -> dict[str, str]:
    """Returns what a file says about its weights."""
    own = {"architecture": asdict(nc.architecture), "provenance": nc.card.to_json()}
    return {"format": FORMAT, "version": VERSION} | {n: json.dumps(v) for n, v in own.items()}


def write_nc(path: Path, nc: "NeuralComplexity") -> None:
    """Writes weights, architecture, units, calibration and provenance to one file, at once."""
    text, tensors = header(nc), dict(nc.state_dict())
    if nc.calibration is not None:
        text["calibration"] = nc.calibration.text()
        tensors |= {CALIBRATED + name: t for name, t in nc.calibration.tensors().items()}
    write_tensors(path, tensors, text)


def read_nc(path: Path, kind: type["NeuralComplexity"]) -> "NeuralComplexity":
    """Reads an NC; runs no code from the file."""
    tensors, text = read_tensors(path)
    if text.get("format") != FORMAT:
        raise ValueError(f"{path} must be a saved NC, got a safetensors file of another kind")
    if (version := text.get("version")) not in READABLE:
        got = f"{version}; use a release of this library that knows it"
        raise ValueError(f"{path} must have format version {' or '.join(READABLE)}, got {got}")
    own = {name: t for name, t in tensors.items() if not name.startswith(CALIBRATED)}
    known = {name.removeprefix(CALIBRATED): t for name, t in tensors.items() if name not in own}
    try:
        if odd := set(text) - KEYS:  # as where the name of the checksum was damaged
            raise ValueError(f"no NC has {', '.join(sorted(odd))}")
        nc = _build(json.loads(text["architecture"]), own, kind)
        nc.card = Card.from_json(json.loads(text["provenance"]))
        fixed = nc.labels and not nc.symmetric and nc.card.classes is not None
        if fixed and (count := len(nc.card.classes or ())) != nc.outputs:
            raise ValueError(f"classes must be {nc.outputs}, got {count}")
        if "calibration" in text or known:
            nc.calibration = Calibration.read(known, text["calibration"])
            kind_of = {"labels": nc.labels, "sees_predictions": nc.head.sees_predictions}
            nc.calibration.select(features_of(**kind_of))  # which it must have
    except DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        reason = f"no {reason}" if isinstance(error, KeyError) else reason
        raise ValueError(f"{path} must hold a complete NC, got a damaged one ({reason})") from None
    ledger.record_known(nc.card.knows)
    return nc


class _Undrawn(TorchFunctionMode):
    """Leaves random numbers out: on the meta device, the first ones take seconds of imports."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.normal_:
            return args[0]
        return (torch.empty if func is torch.randn else func)(*args, **(kwargs or {}))


def _build(
    fields: dict[str, Any], tensors: dict[str, Tensor], kind: type["NeuralComplexity"]
) -> "NeuralComplexity":
    """Returns an NC of these weights; nothing that is larger than they are is ever built."""
    check_types(Architecture.__annotations__, fields)
    a, most = Architecture(**fields), max(len(tensors), UNUSED)  # a layer has at least a tensor
    for name in (name for name in fields if name.endswith("_layers")):
        if (got := getattr(a, name)) > most:
            raise ValueError(f"{name} must be at most {most}, got {got}")
    with torch.device("meta"), _Undrawn():  # where tensors have shapes, and nothing else
        expected = {name: tuple(t.shape) for name, t in kind(**fields).state_dict().items()}
    for name in sorted({*expected, *tensors}):
        wanted, got = expected.get(name), tuple(tensors[name].shape) if name in tensors else None
        if wanted != got:
            raise ValueError(f"{name} must have shape {wanted}, got {got}")
        if tensors[name].is_complex():
            raise TypeError(f"{name} must be real numbers, got {tensors[name].dtype}")
    nc = kind(**fields)
    nc.load_state_dict(tensors)
    for name, tensor in nc.state_dict().items():  # in the precision in which it is used
        if not tensor.isfinite().all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
        if name.endswith(NOT_NEGATIVE) and (tensor < 0).any():
            raise ValueError(f"{name} must not be negative, got {tensor.min().item():.3g}")
        if name in UNITS and not tensor.all():
            raise ValueError(f"{name} must be positive, got 0")
    return nc

"""NC's file, format version 2: safetensors, with architecture and provenance in the header."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.card import Card
from neural_complexity.reliability.calibration import Calibration

__all__ = ["header", "read_nc", "write_nc"]

FORMAT = "neural-complexity"
VERSION = 2
READABLE = (1, 2)  # version 1 knew no calibration
CALIBRATED = "calibration."  # what the names of a calibration's tensors start with
# What a damaged file can lead to.
DAMAGE = (AttributeError, ArithmeticError, LookupError, TypeError, RuntimeError, ValueError)


class _Network(Protocol):
    """What a file holds of an NC."""

    architecture: Architecture
    card: Card
    calibration: Calibration | None


N = TypeVar("N", bound=nn.Module)


def header(nc: _Network) -> dict[str, str]:
    """Returns what a file says about its weights."""
    return {
        "format": FORMAT,
        "version": str(VERSION),
        "architecture": json.dumps(nc.architecture.to_json()),
        "provenance": json.dumps(nc.card.to_json()),
    }


def write_nc(path: Path, nc: nn.Module) -> None:
    """Writes weights, architecture, units, calibration and provenance to one file, at once."""
    text, tensors = header(nc), dict(nc.state_dict())  # type: ignore[arg-type]
    calibration = nc.calibration
    if isinstance(calibration, Calibration):
        text["calibration"] = calibration.text()
        tensors |= {CALIBRATED + name: t for name, t in calibration.tensors().items()}
    write_tensors(path, tensors, text)


def read_nc(path: Path, build: Callable[..., N]) -> N:
    """Reads an NC; runs no code from the file.

    Args:
        path: The file.
        build: Returns an NC of an architecture, given by its fields.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, of another kind, or newer than this library.
    """
    tensors, text = read_tensors(path)
    if text.get("format") != FORMAT:
        raise ValueError(f"{path} must be a saved NC, got a safetensors file of another kind")
    if text.get("version") not in [str(version) for version in READABLE]:
        raise ValueError(
            f"{path} must have format version {' or '.join(map(str, READABLE))}, got "
            f"{text.get('version')}; use a release of this library that knows it"
        )
    try:
        nc = _build(build, tensors, text)
    except DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} must hold a complete NC, got a damaged one ({reason})") from None
    assert isinstance(nc.card, Card)
    ledger.record_known(nc.card.knows)
    return nc


def _build(build: Callable[..., N], tensors: dict[str, Tensor], text: dict[str, str]) -> N:
    nc = build(**json.loads(text["architecture"]))
    own = {name: t for name, t in tensors.items() if not name.startswith(CALIBRATED)}
    nc.load_state_dict(own)
    nc.card = Card.from_json(json.loads(text["provenance"]))  # type: ignore[assignment]
    if "calibration" in text or len(own) < len(tensors):
        known = {name.removeprefix(CALIBRATED): t for name, t in tensors.items() if name not in own}
        nc.calibration = Calibration.read(known, text["calibration"])  # type: ignore[assignment]
    return nc

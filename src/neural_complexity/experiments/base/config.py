"""Settings of experiments: frozen dataclasses whose annotations say which values are possible."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch

__all__ = ["POSITIVE", "AtLeast", "BaseConfig", "Between", "Bound", "Checked", "Count"]
__all__ += ["NetworksConfig", "RunConfig", "config_from_dict"]

C = TypeVar("C")


@dataclass(frozen=True)
class Bound:
    """What a field's value, or each item of a tuple, must be; stands in `Annotated[int, Bound]`."""

    words: str  # behind "must be"
    accepts: Callable[[Any], bool]


def AtLeast(least: float) -> Bound:  # noqa: N802 (reads like a type, in annotations)
    """Returns the bound of values from `least` on."""
    return Bound(f"at least {least}", lambda value: value >= least)


def Between(least: float, most: float, *, open_end: bool = False) -> Bound:  # noqa: N802
    """Returns the bound of values from `least` to `most`, or to below it."""
    if open_end:
        return Bound(f"from {least} to below {most}", lambda value: least <= value < most)
    return Bound(f"from {least} to {most}", lambda value: least <= value <= most)


def _works(device: str) -> bool:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True


POSITIVE = Bound("positive", lambda value: value > 0 and math.isfinite(value))
Count = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Settings that check themselves: raises `ValueError` where a field breaks its bounds."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            bare, *bounds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            if get_origin(bare) is Literal:
                choices = get_args(bare)
                bounds.append(Bound(" or ".join(map(str, choices)), choices.__contains__))
            value = getattr(self, name)
            items = value if isinstance(value, tuple) else (value,)
            for bound in bounds:
                if not all(map(bound.accepts, items)):
                    raise ValueError(f"{name} must be {bound.words}, got {value}")


# Comments behind fields are what `--help` says of them.
@dataclass(frozen=True, kw_only=True)
class RunConfig(Checked):
    """An experiment."""

    seed: int = 0  # The one seed of everything.
    device: Annotated[str, Bound("one that works here", _works)] = "cpu"  # Where: cpu, cuda, ...


@dataclass(frozen=True, kw_only=True)
class BaseConfig(RunConfig):
    """An experiment on held-out tasks."""

    eval_tasks: Annotated[int, AtLeast(2)] = 8192  # Held-out tasks.


@dataclass(frozen=True, kw_only=True)
class NetworksConfig(BaseConfig):
    """An experiment with NCs trained on sinusoids."""

    networks: str = ""  # The folder of a run of `sinusoid`, for its NCs; the shipped ones if empty.


def config_from_dict(kind: type[C], values: dict[str, Any]) -> C:
    """Returns the config that `dataclasses.asdict` and JSON made `values` of."""
    made, hints = dict(values), get_type_hints(kind)
    odd = ", ".join(sorted(set(values) ^ {field.name for field in fields(kind)}))  # type: ignore[arg-type]
    if odd:
        own = kind.__qualname__
        raise ValueError(f"a config must have the fields of {own}, got other ones ({odd})")
    for name, value in values.items():
        if is_dataclass(hints[name]):
            made[name] = config_from_dict(hints[name], value)
        elif get_origin(hints[name]) is tuple:  # JSON has lists only
            made[name] = tuple(value)
    return kind(**made)

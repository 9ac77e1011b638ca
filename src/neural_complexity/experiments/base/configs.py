"""What the configs of all experiments share."""

from dataclasses import dataclass

import torch

__all__ = ["AsksNetworks", "Basics", "check_least"]


def check_least(config: object, least: int, *names: str) -> None:
    """Checks that fields of a config are at least so large.

    Raises:
        ValueError: If one is not.
    """
    for name in names:
        value = getattr(config, name)
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


@dataclass(frozen=True, kw_only=True)
class Basics:
    """An experiment on held-out tasks."""

    seed: int = 0
    """The one seed of everything."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, ..."""
    eval_tasks: int = 8192
    """Held-out tasks."""

    def __post_init__(self) -> None:
        check_least(self, 2, "eval_tasks")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError):
            raise ValueError(f"device must be one that works here, got {self.device}") from None


@dataclass(frozen=True, kw_only=True)
class AsksNetworks(Basics):
    """An experiment that asks NCs trained on sinusoids."""

    networks: str = ""
    """The folder of a finished run of `sinusoid`, for its NCs; the shipped ones if empty."""

"""TRANSITION: `config` replaces it."""

from neural_complexity.experiments.base.config import BaseConfig, NetworksConfig

__all__ = ["AsksNetworks", "Basics", "check_least"]

Basics, AsksNetworks = BaseConfig, NetworksConfig


def check_least(config: object, least: int, *names: str) -> None:
    """TRANSITION: `Annotated[int, AtLeast(1)]` replaces it."""
    for name in names:
        value = getattr(config, name)
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")

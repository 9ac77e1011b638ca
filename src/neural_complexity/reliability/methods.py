"""The names of the methods by which gaps are bounded; a module of its own as it loads at once."""

from typing import Literal

__all__ = ["Method"]

Method = Literal["conformal", "normalised", "dkw", "clopper_pearson"]

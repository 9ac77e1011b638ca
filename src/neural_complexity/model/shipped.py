"""The NCs that ship with the package."""

from importlib import resources
from importlib.resources.abc import Traversable

__all__ = ["shipped_file", "shipped_names"]

# What the NCs in the folder `pretrained` judge.
SHIPPED = {
    "digits": "scikit-learn's digits, as 64 pixels from 0 to 1; posterior head, calibrated",
    "omniglot": "drawn characters of any classes, few images of each; posterior head",
    "omniglot-direct": "drawn characters of ten classes, few images of each; the paper's head",
    "sinusoid": "regression of sinusoids from about ten points; posterior head",
    "sinusoid-direct": "regression of sinusoids from about ten points; the paper's head",
}
PRETRAINED = resources.files("neural_complexity") / "pretrained"


def shipped_names() -> dict[str, str]:
    """Returns the names of the NCs that ship, each with a line on its tasks."""
    files = [file.name.partition(".") for file in PRETRAINED.iterdir()]
    return {name: SHIPPED[name] for name in sorted(name for name, dot, _ in files if dot)}


def shipped_file(name: str) -> Traversable:
    """Returns the file of a name.

    Raises:
        ValueError: If none of that name ships.
    """
    if name not in shipped_names():
        raise ValueError(f"name must be one of {', '.join(shipped_names())}, got {name}")
    return PRETRAINED / f"{name}.safetensors"

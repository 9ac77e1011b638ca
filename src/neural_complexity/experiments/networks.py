"""The trained NCs that most experiments ask."""

from pathlib import Path
from typing import Any, Literal

from neural_complexity.experiments.pieces import Pieces
from neural_complexity.model.complexity import NeuralComplexity

__all__ = ["HEADS", "SHIPPED", "how_made", "load_network", "load_networks"]

HEADS: tuple[Literal["posterior", "direct"], ...] = ("posterior", "direct")
# What the package ships, by head: made by the `sinusoid` experiment at preset `cpu`.
SHIPPED = {"posterior": "sinusoid", "direct": "sinusoid-direct"}


def load_networks(folder: str, device: str) -> dict[str, NeuralComplexity]:
    """Gives the sinusoid's NC with each head.

    Args:
        folder: Of a finished run of the `sinusoid` experiment; the shipped networks if empty.
        device: Where to put them.

    Raises:
        ValueError: If the folder has no networks.
    """
    if not folder:
        return {h: NeuralComplexity.pretrained(n).to(device) for h, n in SHIPPED.items()}
    return {head: load_network(folder, head, "sinusoid", device) for head in SHIPPED}


def load_network(folder: str, head: str, experiment: str, device: str) -> NeuralComplexity:
    """Gives the NC with one head that a finished run left.

    Args:
        folder: Of the run.
        head: Which head.
        experiment: Which one it must be a run of, for the error.
        device: Where to put it.

    Raises:
        ValueError: If the folder has no such network.
    """
    path = Path(folder) / f"nc-{head}.safetensors"
    if not path.is_file():
        raise ValueError(f"networks must be a finished run of {experiment}, got no {path}")
    return NeuralComplexity.load(path).to(device)


def how_made(networks: dict[str, NeuralComplexity], pieces: Pieces) -> dict[str, Any]:
    """Gives the facts of a run that asked NCs: the commits these are from, and the time taken."""
    return {
        "networks": {head: nc.provenance.get("commit") for head, nc in networks.items()},
        "seconds": {name: round(s, 1) for name, s in pieces.seconds.items()},
    }

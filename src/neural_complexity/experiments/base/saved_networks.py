"""The trained NCs that most experiments use."""

from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.files import read_tensors
from neural_complexity.model.network import NeuralComplexity

__all__ = ["HEADS", "how_made", "load_network", "load_networks", "load_tensors"]

HEADS: tuple[Literal["posterior", "direct"], ...] = ("posterior", "direct")
Networks = dict[str, NeuralComplexity]  # by head


def load_networks(folder: str, device: str, experiment: str = "sinusoid") -> Networks:
    """Returns the NCs of a finished run by head; the shipped networks if the folder is empty."""
    if folder:
        return {head: load_network(folder, head, experiment, device) for head in HEADS}
    shipped = {"posterior": experiment, "direct": f"{experiment}-direct"}  # made by preset `cpu`
    return {h: NeuralComplexity.pretrained(n).to(device) for h, n in shipped.items()}


def load_network(folder: str, head: str, experiment: str, device: str) -> NeuralComplexity:
    """Returns the NC with one head that a finished run of an experiment left."""
    path = Path(folder) / f"nc-{head}.safetensors"
    if not path.is_file():
        raise ValueError(f"networks must be a finished run of {experiment}, got no {path}")
    return NeuralComplexity.load(path).to(device)


def load_tensors(folder: str, prefix: str, experiment: str) -> dict[str, Tensor]:
    """Returns the tensors under a prefix, which is cut off, that a finished run left."""
    path = Path(folder) / "figures.safetensors"
    found = read_tensors(path)[0] if path.is_file() else {}
    kept = {name.removeprefix(prefix): t for name, t in found.items() if name.startswith(prefix)}
    if not kept:
        needed = f"a finished run of {experiment} with {prefix}"
        raise ValueError(f"networks must be {needed}, got no such tensors in {path}")
    return kept


def how_made(networks: Networks, parts: Parts) -> dict[str, Any]:
    """Returns the facts of a run that used NCs: the commits these are from, and the time taken."""
    return {
        "networks": {head: nc.card.commit for head, nc in networks.items()},
        "seconds": {name: round(s, 1) for name, s in parts.seconds.items()},
    }

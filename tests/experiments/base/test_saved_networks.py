from pathlib import Path

import pytest
import torch

from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.saved_networks import (
    HEADS,
    how_made,
    load_network,
    load_networks,
    load_tensors,
)
from neural_complexity.files import write_tensors
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.workspace import Workspace


def test_the_shipped_networks_are_asked_unless_a_run_is_given(tmp_path: Path) -> None:
    shipped = load_networks("", "cpu")
    assert tuple(shipped) == HEADS
    for head, nc in shipped.items():
        assert nc.architecture.head == head
        nc.save(tmp_path / f"nc-{head}.safetensors")
    again = load_networks(str(tmp_path), "cpu")["direct"].state_dict()
    weights = NeuralComplexity.pretrained("sinusoid-direct").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    parts = Parts(Workspace(None), 1, None)
    parts.do("a", lambda: {"x": torch.ones(1)})
    facts = how_made(shipped, parts)
    assert set(facts["networks"]) == set(HEADS)
    assert set(facts["seconds"]) == {"a"}


def test_folders_without_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="networks must be a finished run of sinusoid, got no"):
        load_network(str(tmp_path), "direct", "sinusoid", "cpu")
    with pytest.raises(ValueError, match="must be a finished run of omniglot with a/, got no such"):
        load_tensors(str(tmp_path), "a/", "omniglot")
    write_tensors(tmp_path / "figures.safetensors", {"a/x": torch.ones(2), "b": torch.ones(1)}, {})
    assert set(load_tensors(str(tmp_path), "a/", "omniglot")) == {"x"}

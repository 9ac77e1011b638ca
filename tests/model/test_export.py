"""NC as an ONNX file."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from conftest import labelled_snapshot, random_snapshot
from neural_complexity.model.card import Card
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import Snapshot

pytestmark = pytest.mark.usefixtures("single_precision")

SMALL: dict[str, Any] = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
IMAGES: dict[str, Any] = {"loss": "cross_entropy", "channels": 2, "image_layers": 1}


def run(path: Path, snapshot: Snapshot) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = session.run(
        None, {name: tensor.numpy() for name, tensor in vars(snapshot).items()}
    )
    return outputs


def same(nc: NeuralComplexity, path: Path, snapshot: Snapshot) -> None:
    with torch.no_grad():
        own = nc.predict(*snapshot.tensors()), nc.predict_points(*snapshot.tensors())
    for mine, its in zip(own, run(path, snapshot), strict=True):
        np.testing.assert_allclose(its, mine.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_real_targets_on_sets_of_any_size(tmp_path: Path) -> None:
    nc = NeuralComplexity(2, 3, head="direct", self_layers=1, **SMALL).train()
    nc.card = Card.from_json({"experiment": "none"})
    path = tmp_path / "nc.onnx"
    nc.to_onnx(path)
    assert nc.training  # stays as it is
    assert all(parameter.requires_grad for parameter in nc.parameters())
    for B, M, N in ((1, 1, 1), (4, 6, 3), (2, 30, 40)):
        same(nc, path, random_snapshot(B, M, N, D=2, C=3, seed=M))
    session = onnxruntime.InferenceSession(path)
    header = session.get_modelmeta().custom_metadata_map
    assert header["format"] == "neural-complexity"
    assert json.loads(header["provenance"]) == nc.provenance
    assert json.loads(header["architecture"]) == asdict(nc.architecture)
    assert [i.shape[:2] for i in session.get_inputs()] == [["B", "M"]] * 3 + [["B", "N"]] * 2


@pytest.mark.slow
def test_labels_of_images_for_any_number_of_classes(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "symmetric": True,
        "bilinear": True,
        "metric": True,
        "rounds": 1,
        "vote": True,
    }
    nc = NeuralComplexity((1, 4, 4), 3, **SMALL, **IMAGES, **options)
    path = tmp_path / "nc.onnx"
    nc.to_onnx(path)
    # 4 is the width of an attention head, which PyTorch treats by itself; 600 images are two parts.
    for B, M, N, C in ((1, 2, 1, 4), (3, 5, 4, 2), (1, 3, 600, 9)):
        same(nc, path, labelled_snapshot(B, M, N, C, (1, 4, 4), seed=C))


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"neural-complexity\[onnx\]"):
        NeuralComplexity(1, 1, **SMALL).to_onnx(tmp_path / "nc.onnx")
    assert not list(tmp_path.iterdir())


def test_other_precisions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"nc must be torch\.float32 for ONNX, got torch\.float64"):
        NeuralComplexity(1, 1, **SMALL).double().to_onnx(tmp_path / "nc.onnx")

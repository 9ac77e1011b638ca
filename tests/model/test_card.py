import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from conftest import labelled_snapshot, random_snapshot
from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.model.card import Card, HeldOutReport, header, read_nc, write_nc
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import Snapshot

NUMBERS = arrays.arrays(np.float32, (6, 3), elements=st.floats(-9, 9, width=32))
SMALL: dict[str, Any] = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
IMAGES: dict[str, Any] = {"loss": "cross_entropy", "channels": 2, "image_layers": 1}


@given(NUMBERS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_an_nc_knows_the_points_that_it_learned_from_and_no_others(
    rows: Any, chosen: list[bool]
) -> None:
    X, some = torch.from_numpy(rows), np.array(chosen)
    assert not Card().knows(X).any()
    parts = [X[:0], X[some][::2], X[some][1::2].double()]
    card = Card(learned_from=Card().remember(parts))
    same = (X[:, None] == X[some][None]).all(dim=2).any(dim=1)
    assert card.knows(X).tolist() == same.tolist()
    columns = torch.from_numpy(np.asfortranarray(rows))
    assert card.knows(columns).tolist() == same.tolist()
    assert card.knows(-0.0 + X.double()).tolist() == same.tolist()


def test_a_card_survives_json_under_the_names_of_the_files() -> None:
    report = HeldOutReport(learners=3, verdict="fine", r2=0.5, kinds=({"what": "size"},))
    card = Card(context_size=64, classes=("a", 2), report=report, fingerprint="f", commit="c")
    card = replace(card, plan={"updates": 3}, notes={"seed": 3, "config": {"width": 4}})
    content = json.loads(json.dumps(card.to_json()))
    assert (content["shown"], content["identity"], content["seed"]) == (64, "f", 3)
    assert Card.from_json(content) == card
    assert Card.from_json(Card().to_json()) == Card()


@pytest.mark.parametrize(
    "content", [{"shown": 0}, {"shown": "many"}, {"classes": 3}, {"learned_from": 3}, [1]]
)
def test_what_is_no_card_is_refused(content: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Card.from_json(content)


def test_the_provenance_is_a_view_that_is_replaced_as_a_whole() -> None:
    nc = NeuralComplexity(3, 1, width=8, heads=2)
    nc.card = Card.from_json({"seed": 3, "shown": 12})
    assert dict(nc.provenance) == {"seed": 3, "shown": 12}
    assert nc.card.context_size == 12
    with pytest.raises(TypeError):
        nc.provenance["seed"] = 4  # type: ignore[index]


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    nc, path = NeuralComplexity(2, 1, width=8, heads=2), tmp_path / "nc.safetensors"
    write_nc(path, nc)
    tensors, text = read_tensors(path)
    assert text == header(nc)
    assert json.loads(text["architecture"])["width"] == 8
    again = read_nc(path, NeuralComplexity)
    assert all(torch.equal(t, again.state_dict()[name]) for name, t in tensors.items())


@pytest.mark.parametrize("field", ["architecture", "provenance"])
@pytest.mark.parametrize("content", ["{", "[]", "3", '{"width": "wide"}', '{"shown": -1}'])
def test_a_header_of_something_else_is_called_damaged(
    tmp_path: Path, field: str, content: str
) -> None:
    nc, path = NeuralComplexity(2, 1, width=8, heads=2), tmp_path / "nc.safetensors"
    write_tensors(path, dict(nc.state_dict()), {**header(nc), field: content})
    if (field, content) == ("provenance", '{"width": "wide"}'):  # a note like any other
        assert read_nc(path, NeuralComplexity).provenance["width"] == "wide"
        return
    with pytest.raises(ValueError, match="must hold a complete NC, got a damaged one"):
        read_nc(path, NeuralComplexity)


@pytest.fixture
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)


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
@pytest.mark.usefixtures("single_precision")
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
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["format"] == "neural-complexity"
    assert json.loads(metadata["provenance"]) == nc.provenance
    assert json.loads(metadata["architecture"]) == asdict(nc.architecture)
    assert [i.shape[:2] for i in session.get_inputs()] == [["B", "M"]] * 3 + [["B", "N"]] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("single_precision")
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


@pytest.mark.usefixtures("single_precision")
def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"neural-complexity\[onnx\]"):
        NeuralComplexity(1, 1, **SMALL).to_onnx(tmp_path / "nc.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("single_precision")
def test_other_precisions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"nc must be torch\.float32 for ONNX, got torch\.float64"):
        NeuralComplexity(1, 1, **SMALL).double().to_onnx(tmp_path / "nc.onnx")

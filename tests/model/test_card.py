import json
import math
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import labelled_snapshot
from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.model.card import Card, HeldOutReport, header, read_nc, write_nc
from neural_complexity.model.network import NeuralComplexity

LAYERS = ("encoder", "decoder", "self", "image", "table")
NUMBERS = arrays.arrays(np.float32, (6, 3), elements=st.floats(-9, 9, width=32))


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
    report = HeldOutReport(learners=3, verdict="fine", r2=0.5, kinds=(SCORES,))
    card = Card(context_size=64, classes=("a", 2), report=report, fingerprint="f", commit="c")
    card = replace(card, plan={"updates": 3}, notes={"seed": 3, "config": {"width": 4}})
    content = json.loads(json.dumps(card.to_json()))
    assert (content["shown"], content["identity"], content["seed"]) == (64, "f", 3)
    assert Card.from_json(content) == card
    assert Card.from_json(Card().to_json()) == Card()


SCORES = {"what": "size", "learners": 3, "from": 1, "to": 2.5, "mean_error": 0.1, "bias": 0.0}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"shown": 0}, "the context size must be at least 1, got 0"),
        ({"shown": "many"}, "context_size must be of type int, got 'many'"),
        ({"shown": True}, "context_size must be of type int, got True"),
        ({"shown": 10**30}, "context_size must be of type int, got 1000"),
        ({"classes": 3}, "classes must be of type .*, got 3"),
        ({"classes": [[1]]}, "classes must be of type .*, got"),
        ({"classes": ["a", "a"]}, "classes must be different, got one twice"),
        ({"learned_from": 3}, "learned_from must be of type str, got 3"),
        ({"learned_from": "a_b="}, "base64"),
        ({"learned_from": "YWI="}, "buffer size must be a multiple"),
        ({"belief_loss": float("nan")}, "belief_loss must be of type .*float.*, got nan"),
        ({"plan": {"updates": "3"}}, "plan must be of type .*, got"),
        ({"report": [1]}, "report must be of type HeldOutReport, got"),
        ({"report": {"verdict": None}}, "verdict must be of type str, got None"),
        ({"report": {"beats_the_mean_gap": "no"}}, "beats_the_mean_gap must be of type bool"),
        ({"report": {"r2": 10**400}}, "r2 must be of type .*, got 1000"),
        ({"report": {"kinds": [3]}}, "kinds must be of type .*, got"),
        ({"report": {"kinds": [SCORES | {"to": "x"}]}}, "to must be of type float, got 'x'"),
        ([1], "sequence"),
    ],
)
def test_what_is_no_card_is_refused(content: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
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


def small(**fields: Any) -> NeuralComplexity:
    """Returns an NC that knows all that a file can hold."""
    nc = NeuralComplexity(2, 3, loss="cross_entropy", width=8, heads=2, **fields)
    report = HeldOutReport(verdict="fine", beats_the_mean_gap=True, r2=0.5, kinds=(SCORES,))
    nc.card = Card(classes=("a", "b", 3), report=report, plan={"updates": 3}, belief_loss=0.5)
    nc.card = replace(nc.card, learned_from=nc.card.remember([torch.zeros(1, 2)]))
    nc.calibrate([(labelled_snapshot(B=8), torch.arange(40).view(8, 5) % 3)])
    return nc


def write(path: Path, nc: NeuralComplexity, header: dict[str, Any], **tensors: Tensor) -> None:
    """Writes a file with a right checksum whose header or tensors are not those of NC."""
    write_nc(path, nc)
    own, text = read_tensors(path)
    text |= {name: json.dumps(json.loads(text[name]) | value) for name, value in header.items()}
    write_tensors(path, own | tensors, text)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        *((f"{kind}_layers", 10**6, "must be at most 64, got 1000000") for kind in LAYERS),
        ("width", 10**6, "must have shape .*1000000.*, got .*8"),
        ("width", 10**18, "Storage size calculation overflowed"),
        ("width", "8", "width must be of type int, got '8'"),
        ("outputs", 10**9, r"must have shape \(2000000000,\), got \(6,\)"),
        ("inputs", [1, 10**5, 10**5], r"must have shape \(8, 2500000000\), got \(8, 2\)"),
        ("rounds", 10**9, "rounds must be at most 1000, got 1000000000"),
        ("query_skip", "no", "query_skip must be of type bool, got 'no'"),
        ("image_encoder", "none", "image_encoder must be of type .*, got 'none'"),
        ("clip", float("nan"), "clip must be of type float, got nan"),
        ("odd", 3, "unexpected keyword argument 'odd'"),
    ],
)
def test_a_network_is_not_built_before_it_is_known_to_be_in_the_file(
    tmp_path: Path, field: str, value: Any, sentence: str
) -> None:
    path = tmp_path / "nc.safetensors"
    write(path, NeuralComplexity(2, 3, width=8, heads=2), {"architecture": {field: value}})
    with pytest.raises(ValueError, match=f"{path} must hold a complete NC, got .*{sentence}"):
        read_nc(path, NeuralComplexity)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("head.network.on_train.weight", torch.nan, "must be finite, got NaN or infinity"),
        ("x_mean", torch.inf, "x_mean must be finite, got NaN or infinity"),
        ("x_scale", -1.0, "x_scale must not be negative, got -1"),
        ("y_scale", 0.0, "y_scale must be positive, got 0"),
        ("y_scale", 1j, "y_scale must be real numbers, got torch.complex64"),
        ("calibration.features", 1e300, "features must be finite, got infinity, or next to it"),
        ("calibration.spread", 0.0, "spread must be positive, got zero or less"),
        ("odd", 1.0, r"odd must have shape None, got \(\)"),
    ],
)
def test_numbers_that_no_nc_has_are_refused(
    tmp_path: Path, name: str, value: complex, sentence: str
) -> None:
    path, nc = tmp_path / "nc.safetensors", small()
    write_nc(path, nc)
    tensor = read_tensors(path)[0].get(name, torch.zeros(()))
    kind = torch.complex64 if isinstance(value, complex) else tensor.dtype
    write(path, nc, {}, **{name: torch.full(tensor.shape, value, dtype=kind)})
    with pytest.raises(ValueError, match=f"{path} must hold a complete NC, got .*{sentence}"):
        read_nc(path, NeuralComplexity)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"sizes": [[1, 2]]}, "sizes must be of type"),
        ({"sizes": [[1, 2], [3, 1e400]]}, "sizes must be of type"),
        ({"sizes": [[1, 2], [3, 2]]}, "sizes of test sets must be from 1, got 3 to 2"),
        (
            {"names": ["a"]},
            r"features must have shape \(8, 1\) in a calibration of 8 learners, got",
        ),
        ({"note": 3}, "note must be of type str, got 3"),
    ],
)
def test_a_calibration_of_something_else_is_refused(
    tmp_path: Path, content: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "nc.safetensors"
    write(path, small(), {"calibration": content})
    with pytest.raises(ValueError, match=f"{path} must hold a complete NC, got .*{sentence}"):
        read_nc(path, NeuralComplexity)
    one = {"calibration.features": torch.zeros(8, 1)}
    write(path, small(), {"calibration": {"names": ["a"]}}, **one)
    with pytest.raises(
        ValueError, match="a calibration must have spread of NC's prediction, .* got no spread"
    ):
        read_nc(path, NeuralComplexity)
    write(path, small(), {"provenance": {"classes": ["a"]}})
    with pytest.raises(ValueError, match="classes must be 3, got 1"):
        read_nc(path, NeuralComplexity)


def test_a_flipped_bit_is_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "nc.safetensors"
    write_nc(path, small())
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="must have the checksum .*, got .*: it is damaged"):
        read_nc(path, NeuralComplexity)


def test_shapes_are_compared_without_loading_much(tmp_path: Path) -> None:
    # On the meta device, random numbers would import a thousand modules first.
    code = """
import sys, torch
from neural_complexity import NeuralComplexity
before = set(sys.modules)
for fields in ({"inputs": (1, 8, 8)}, {"inputs": (1, 8, 8), "image_encoder": "resnet"}, {
    "inputs": 2, "for_tables": True, "loss": "cross_entropy", "table_layers": 1, "extra_rows": 2,
}):
    nc = NeuralComplexity(outputs=2, width=8, heads=2, channels=4, **fields)
    nc.save(sys.argv[1])
    again = NeuralComplexity.load(sys.argv[1]).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in nc.state_dict().items())
print(len(set(sys.modules) - before))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "nc.safetensors")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 50


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 10**6, 10**18, 10**400, 1e308, "a", "posterior", "direct"])
    | st.floats()
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)


@st.composite
def edits(draw: st.DrawFn, content: Any) -> Any:
    """Replaces, removes or adds something, at some depth."""
    if isinstance(content, dict | list) and content and draw(st.integers(0, 9)):
        changed = dict(content) if isinstance(content, dict) else dict(enumerate(content))
        key = draw(st.sampled_from(sorted(changed)))
        changed[key] = draw(edits(changed[key]))
        if not draw(st.integers(0, 9)):
            del changed[key]
        return changed if isinstance(content, dict) else list(changed.values())
    return draw(JSON)


@cache
def whole_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_nc(Path(folder) / "nc.safetensors", small())
        return (Path(folder) / "nc.safetensors").read_bytes()


@settings(max_examples=100)
@given(st.data())
def test_whatever_is_in_a_file_loading_it_gives_a_working_nc_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path, snapshot = tmp_path_factory.getbasetemp() / "fuzzed.safetensors", labelled_snapshot(B=1)
    path.write_bytes(whole_file())
    tensors, text = read_tensors(path)
    if data.draw(st.booleans(), "bits"):
        content = bytearray(path.read_bytes())
        for place in data.draw(st.lists(st.integers(0, len(content) * 8 - 1), max_size=4)):
            content[place // 8] ^= 1 << place % 8
        path.write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))])
    else:
        field = data.draw(st.sampled_from(["architecture", "provenance", "calibration"]))
        text[field] = json.dumps(data.draw(edits(json.loads(text[field]))))
        name = data.draw(st.sampled_from(sorted(tensors)))
        value = data.draw(st.none() | st.floats(), name)
        write_tensors(path, tensors | ({name: tensors[name] * value} if value else {}), text)
    try:
        nc = NeuralComplexity.load(path)
        labels, outputs = nc.labels, nc.outputs
        known = nc.card.classes or range(outputs)
        y_tr = [known[y % outputs] for y in snapshot.Y_tr[0]] if labels else torch.randn(4, outputs)
        model = nn.Linear(2, outputs)
        found = nc.assess(model, snapshot.X_tr[0], y_tr, snapshot.X_te[0])
    except (OSError, ValueError):
        return
    assert math.isfinite(found.gap)

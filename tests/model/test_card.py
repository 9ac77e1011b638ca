import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.model.card import Card, HeldOutReport, header, read_nc, write_nc
from neural_complexity.model.network import NeuralComplexity

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

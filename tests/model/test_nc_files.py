import json
from pathlib import Path

import pytest
import torch

from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.model.nc_files import header, read_nc, write_nc
from neural_complexity.model.network import NeuralComplexity


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

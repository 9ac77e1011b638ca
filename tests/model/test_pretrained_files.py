from pathlib import Path

import pytest

from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.pretrained_files import find_nc


def test_an_nc_is_found_by_its_name_or_its_file(tmp_path: Path) -> None:
    path = tmp_path / "nc"
    NeuralComplexity(2, 3, width=8, heads=2).save(path)
    assert find_nc("sinusoid").outputs == 1
    assert find_nc(str(path)).outputs == find_nc(path).outputs == 3
    with pytest.raises(ValueError, match="nc must be a safetensors file or one of digits, .*cosin"):
        find_nc("cosine")
    for gone in (Path("sinusoid"), "gone.safetensors"):
        with pytest.raises(FileNotFoundError):
            find_nc(gone)

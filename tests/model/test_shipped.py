from pathlib import Path

import pytest

from neural_complexity.model.shipped import PRETRAINED, shipped_file, shipped_names


def test_every_file_in_the_folder_has_a_name_and_a_line() -> None:
    files = sorted(path.stem for path in Path(str(PRETRAINED)).glob("*.safetensors"))
    assert list(shipped_names()) == files
    assert all(shipped_file(name).is_file() for name in files)
    with pytest.raises(ValueError, match="name must be one of digits, .*, got cosine"):
        shipped_file("cosine")

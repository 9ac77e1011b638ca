from importlib import resources
from pathlib import Path

import pytest
from safetensors import safe_open

from neural_complexity.files import CHECKSUM
from neural_complexity.model.shipped import SHIPPED


def test_every_file_that_ships_has_a_name_and_every_name_a_file() -> None:
    folder = resources.files("neural_complexity") / "pretrained"
    files = {path.name for path in folder.iterdir() if path.name.endswith(".safetensors")}
    assert files == {f"{name}.safetensors" for name in SHIPPED}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_file_that_ships_has_a_checksum(name: str) -> None:
    path = Path(str(resources.files("neural_complexity") / "pretrained" / f"{name}.safetensors"))
    with safe_open(path, framework="numpy") as file:
        assert CHECKSUM in file.metadata()

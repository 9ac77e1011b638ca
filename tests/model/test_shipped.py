from importlib import resources

from neural_complexity.model.shipped import SHIPPED


def test_every_file_that_ships_has_a_name_and_every_name_a_file() -> None:
    folder = resources.files("neural_complexity") / "pretrained"
    files = {path.name for path in folder.iterdir() if path.name.endswith(".safetensors")}
    assert files == {f"{name}.safetensors" for name in SHIPPED}

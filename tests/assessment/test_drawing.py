from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from neural_complexity.assessment.drawing import save, to_png


def picture() -> Figure:
    figure = Figure(figsize=(2, 2))
    figure.subplots().imshow(np.random.default_rng(0).random((40, 40)))
    return figure


def test_the_same_numbers_make_the_same_files(tmp_path: Path) -> None:
    first, second = (save(picture(), tmp_path / part, "a") for part in ("one", "two"))
    assert first == tmp_path / "one" / "a.png"
    assert first.read_bytes() == second.read_bytes() == to_png(picture())
    assert first.with_suffix(".pdf").read_bytes() == second.with_suffix(".pdf").read_bytes()
    with Image.open(first) as image:
        assert image.mode == "P"  # at most 256 colours

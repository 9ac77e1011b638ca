from pathlib import Path

import numpy as np

from neural_complexity.assessment.drawing import save
from neural_complexity.experiments.reports.surfaces_report import (
    Plane,
    _scales,
    draw_contours,
    draw_surfaces,
)

SIDE = np.linspace(-1.0, 1.0, 9)


def bowls() -> dict[str, Plane]:
    """Planes of quadratic losses; the test loss is lowest beside the centre."""
    a, b = np.meshgrid(SIDE, SIDE, indexing="ij")
    train, test = a**2 + b**2, (a - 0.5) ** 2 + b**2 + 0.3
    planes = {"train loss": train, "test loss": test, "gap": test - train}
    for head in ("posterior", "direct"):
        planes |= {f"NC, {head}": test - train, f"regularized loss, {head}": test}
    return planes


def test_one_corner_does_not_flatten_everything() -> None:
    planes = bowls()
    plain = _scales(planes)
    planes["test loss"][0, 0] = planes["gap"][0, 0] = 1e9
    planes["NC, direct"] = planes["NC, direct"] * 1e9  # nor does an NC that is far off
    for before, after in zip(plain, _scales(planes), strict=True):
        assert np.allclose(before.limits, after.limits, rtol=0.1)
        assert after.limits[0] < after.limits[1]


def test_lowest_points_and_the_learner_are_marked_in_every_panel() -> None:
    canvas = draw_contours(SIDE, SIDE, [bowls(), bowls()], ("posterior", "direct"))
    panels = [ax for ax in canvas.axes if ax.get_xlim() == (-1.0, 1.0)]
    assert len(panels) == 2 * 7
    for ax, name in zip(panels, bowls_in_order() * 2, strict=True):
        marked = {line.get_marker(): line.get_xydata().tolist() for line in ax.lines}  # type: ignore[union-attr]
        i, j = np.unravel_index(bowls()[name].argmin(), (9, 9))
        assert marked["x"] == [[0.0, 0.0]]
        assert marked["o"] == [[SIDE[j], SIDE[i]]]


def bowls_in_order() -> list[str]:
    heads = ("posterior", "direct")
    return [
        "train loss",
        "gap",
        *(f"NC, {head}" for head in heads),
        "test loss",
        *(f"regularized loss, {head}" for head in heads),
    ]


def test_surfaces_stand_as_in_the_paper(tmp_path: Path) -> None:
    canvas = draw_surfaces(SIDE, SIDE, bowls(), "direct")
    titles = [ax.get_title() for ax in canvas.axes]
    assert titles == ["train loss", "gap", "NC, direct", "test loss", "train loss + NC, direct"]
    train, gap, nc, test, regularized = (ax.get_position() for ax in canvas.axes)
    assert train.x0 < gap.x0 == nc.x0 < test.x0 == regularized.x0
    assert gap.y0 == test.y0 > train.y0 > nc.y0 == regularized.y0
    assert save(canvas, tmp_path, "surfaces").stat().st_size > 10_000

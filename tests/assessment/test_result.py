import json
from dataclasses import asdict

import numpy as np
import pytest

from assessed import BOUND, OPEN, example
from neural_complexity.reliability.calibration import Shift


def test_everything_can_be_stored_as_json() -> None:
    for found in (
        example(),
        example(bound=BOUND, unlike=Shift(0.03, "training loss", "odd"), trust=None),
        example(points=np.array([1.0]), accuracy_tr=None, accuracy_te=None),
    ):
        stored = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert stored["points"] == found.points.tolist()
        assert stored["worst"] == found.worst()
        assert stored["test_points"] == len(found.points)
        assert stored["loss_te"] == found.loss_te
        assert stored["bound"] == (None if found.bound is None else asdict(found.bound))
        assert stored["unlike"] == (None if found.unlike is None else asdict(found.unlike))
    assert example(bound=OPEN).to_dict()["bound"] == {**asdict(OPEN), "low": None, "high": None}


def test_the_summary_has_every_number() -> None:
    found = example(bound=BOUND, unlike=Shift(0.03, "a", "b"), warnings=("odd",))
    text = repr(found)
    for part in (
        f"{found.loss_te:.4g}",
        f"{found.gap:+.3g}",
        "-0.5 to +1.5 at 90 % (conformal)",
        "p = 0.03",
        f"worst test points    {found.worst(1)[0]} (",
        "note: odd",
    ):
        assert part in text
    assert "trust                unknown" in repr(example(trust=None))


def test_the_worst_points_come_first() -> None:
    found = example(points=np.array([1.0, 3.0, 2.0, 3.0]))
    assert found.worst() == [1, 3, 2, 0]
    assert found.worst(2) == [1, 3]
    with pytest.raises(ValueError, match="k must be at least 0, got -1"):
        found.worst(-1)


def test_every_kind_of_assessment_can_be_drawn() -> None:
    for found in (
        example(),
        example(bound=BOUND),
        example(bound=OPEN),
        example(points=np.array([1.0])),
        example(points=np.array([1e-6, 1.0, 50.0])),
        example(points=np.zeros(3)),
    ):
        figure = found.plot()
        assert len(figure.axes) == 2
        figure.canvas.draw()  # type: ignore[no-untyped-call, unused-ignore]


def test_the_page_needs_nothing_else_and_escapes_sentences() -> None:
    page = example(bound=BOUND, warnings=("<b>odd</b> & bad",)).to_html()
    assert "&lt;b&gt;odd&lt;/b&gt; &amp; bad" in page
    assert page.count("src=") == page.count("src='data:image/png;base64,") == 1
    assert "http" not in page
    assert "link" not in page

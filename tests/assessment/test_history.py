import json

import numpy as np
import pytest

from assessed import example
from neural_complexity.assessment.history import Check, History
from neural_complexity.assessment.metrics import Estimate
from neural_complexity.assessment.moved import Moved
from neural_complexity.assessment.page import CLIPPED
from neural_complexity.assessment.slices import Slice

pytestmark = pytest.mark.usefixtures("single_precision")


def check(name: str, value: float, **changes: object) -> Check:
    found = example(
        errors=np.full(200, 1 - value),
        metrics=dict.fromkeys(
            ("accuracy", "log_loss"), Estimate(value, value - 0.1, value + 0.1, 0.95)
        ),
        moved=Moved(0.01, 0.9, ("age",), (3, 5)),
        slices=(Slice("age", "above 40", 50, 0.4),),
    )
    given = {"expected": 0.1, "p_value": 0.5, "alarm": False} | changes
    return Check(name=name, assessment=found, **given)  # type: ignore[arg-type]


@pytest.fixture
def many() -> History:
    usual = [check(f"day {i}", 0.9) for i in range(30)]
    return History((*usual, check("<b>bad</b>", 0.6, alarm=True, p_value=0.001)), 0.05)


def test_the_frame_has_a_row_for_each_chunk(many: History) -> None:
    frame = many.to_df()
    assert len(frame) == 31
    assert frame["alarm"].sum() == 1
    last = frame.iloc[-1]
    assert (last["accuracy value"], last["accuracy low"]) == (0.6, 0.5)
    assert last["error"] == pytest.approx(0.4)
    assert (last["shift_p_value"], last["outside"], last["shifted_features"]) == (0.01, 2, "age")
    assert json.loads(frame.to_json())
    assert History((), 0.05).to_df().empty
    assert repr(History((), 0.05)) == "no chunks"
    assert len(repr(many).splitlines()) == 31


def test_every_history_can_be_drawn(many: History) -> None:
    for found in (many, History(many.checks[:1], 0.05), History((), 0.05)):
        figure = found.plot()
        assert len(figure.axes) == 2
        figure.canvas.draw()  # type: ignore[no-untyped-call, unused-ignore]


def test_the_page_says_how_many_alarms_there_are_and_why(many: History) -> None:
    page = many.to_html()
    assert "Alarms in 1 of 31 chunks: &lt;b&gt;bad&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "Where it will fail in" in page
    assert CLIPPED in page
    assert "age above 40" in page
    assert page.count("src=") == page.count("src='data:image/png;base64,") == 1
    assert "http" not in page
    silent = History((check("a", 0.9, p_value=None, expected=None),), 0.05).to_html()
    assert "no alarms: there is no reference" in silent
    assert "0 chunks, no alarms" in History((), 0.1).to_html()
    twice = History((check("$day_$", 0.9), check("$day_$", 0.8)), 0.0005).to_html()
    assert "one in 0.05 % of cases" in twice

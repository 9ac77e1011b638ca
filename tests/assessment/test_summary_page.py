import numpy as np

from assessed import BOUND, OPEN, example
from neural_complexity.assessment.summary_page import draw, tables


def test_every_kind_of_assessment_can_be_drawn() -> None:
    for found in (
        example(),
        example(bound=BOUND),
        example(bound=OPEN),
        example(points=np.array([1.0])),
        example(points=np.array([1e-6, 1.0, 50.0])),
        example(points=np.zeros(3)),
    ):
        figure = draw(found)
        assert len(figure.axes) == 2
        figure.canvas.draw()  # type: ignore[no-untyped-call, unused-ignore]
    assert len(example().plot().axes) == 2


def test_the_tables_hold_what_is_known() -> None:
    losses, worst = tables(example(bound=BOUND, loss_tr=0.25, points=np.array([1.0, 2.0])))
    assert [row[0] for row in losses.rows] == ["loss", "accuracy", "bound of the loss"]
    assert losses.rows[-1][-1] == "0 to 1.75"  # no loss is negative
    assert losses.note == "90 % bound (conformal)"
    assert worst.rows == (("1", "2"), ("0", "1"))
    (only,) = tables(example(accuracy_tr=None))[0].rows
    assert only[0] == "loss"


def test_the_page_needs_nothing_else_and_escapes_sentences() -> None:
    page = example(bound=BOUND, warnings=("<b>odd</b> & bad",)).to_html()
    assert "&lt;b&gt;odd&lt;/b&gt; &amp; bad" in page
    assert page.count("src=") == page.count("src='data:image/png;base64,") == 1
    assert "http" not in page
    assert "link" not in page

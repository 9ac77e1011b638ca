from functools import partial

import pytest
import torch
from torch import Tensor

from neural_complexity.experiments.base.comparison import NONE, label, sinusoid_recipe, train_with
from neural_complexity.experiments.base.rows import Row, select
from neural_complexity.experiments.regularizers import (
    PAPER,
    STEPS,
    WEIGHTS,
    Config,
    _stop_early,
    figures,
)
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from smoke_runs import SmokeRuns


@pytest.fixture(scope="module")
def rows(smoke_runs: SmokeRuns) -> list[Row]:
    return smoke_runs("regularizers").outcome.rows


def values(rows: list[Row], metric: str, step: int) -> dict[str, float]:
    return {label(row.keys): row.value for row in select(rows, metric, step=step)}


def test_the_table_has_all_rows_of_the_paper(rows: list[Row]) -> None:
    assert len(PAPER) == 28  # the paper's: none, 20 norms, 5 dropouts, MetaReg, NC
    for step in STEPS:
        diverged = values(rows, "diverged tasks", step)
        assert set(PAPER) <= set(diverged)
        some = {method for method, count in diverged.items() if count > 0.01 * 128}
        # What diverges has no mean, all others have one.
        assert set(diverged) - some == set(values(rows, "test loss", step))
    assert "dropout (0.9)" in some
    assert not some & {"none", "oracle", "NC posterior (1)", "NC direct (1)", "MetaReg"}
    more = {"oracle", "variational dropout", "early stopping (3 points)"}
    more |= {f"NC {head} ({w:g})" for head in ("posterior", "direct") for w in WEIGHTS}
    assert more <= {label(row.keys) for row in rows}


def test_nc_is_the_best_of_the_table_at_every_step(rows: list[Row]) -> None:
    for step in STEPS:
        found = select(rows, "test loss", step=step)
        others = min(row.value for row in found if row.keys["method"] not in ("NC", "oracle"))
        ncs = select(found, method="NC", weight=1.0)
        assert {row.keys["head"] for row in ncs} == {"posterior", "direct"}
        assert all(row.value < others for row in ncs)
    (share,) = select(rows, "share of oracle", step=16, head="posterior", weight=1.0)
    assert share.value > 0.99


def test_every_regularizer_changes_what_learners_learn(rows: list[Row]) -> None:
    losses = values(rows, "test loss", 16)
    plain = losses.pop("none")
    assert plain not in losses.values()


def test_curves_have_the_papers_steps(smoke_runs: SmokeRuns) -> None:
    _, curves = figures(smoke_runs("regularizers").outcome)
    (ax,) = curves.canvas.axes
    assert ax.get_xticks().tolist() == [*STEPS]
    assert torch.as_tensor(ax.lines[0].get_xdata()).tolist() == [*STEPS]


def test_early_stopping_goes_back_to_where_the_held_out_points_were_fitted_best() -> None:
    task = Sinusoids().sample(32, stream(0, "x"))
    recipe = sinusoid_recipe(steps=max(STEPS))
    result = _stop_early(Config(held_out_points=4), recipe, task)
    X, Y = task.X_tr, task.Y_tr
    train = partial(train_with, NONE, recipe, seed=0)
    plain = train(Task(X[:, :6], Y[:, :6], task.X_te, task.Y_te))
    judge = train(Task(X[:, :6], Y[:, :6], X[:, 6:], Y[:, 6:]))
    for row, step in enumerate(STEPS):
        for b in range(32):
            best = min(range(step + 1), key=partial(_at, judge.loss_te, b))
            assert torch.equal(result["loss_te"][row, b], plain.loss_te[best, b])


def _at(losses: Tensor, b: int, step: int) -> float:
    return losses[step, b].item()

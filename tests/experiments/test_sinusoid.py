from dataclasses import replace

import pytest
import torch

from neural_complexity.experiments.base.comparison import METHOD, label
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import Key, find, select
from neural_complexity.experiments.sinusoid import PRESETS, STEPS, TASKS_DRAWN, figures, run
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

smoke = PRESETS["smoke"]


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("sinusoid").outcome


def value(outcome: Outcome, metric: str, **keys: Key) -> float:
    row = find(outcome.rows, metric, **keys)
    assert row is not None
    return row.value


def test_all_that_a_report_needs_is_there(outcome: Outcome) -> None:
    found = {(label(row.keys), row.metric) for row in outcome.rows if "method" in row.keys}
    for head in ("posterior", "direct"):
        for metric in ("R2", "correlation", "MAE"):
            assert (f"NC {head}", metric) in found
        for mode in ("transductive", "inductive"):
            for metric in ("test loss", "train loss", "share of oracle"):
                assert (f"NC {head}, {mode}", metric) in found
    for method in ("none", "oracle", "NC posterior, its beliefs"):
        assert (method, "test loss") in found
    assert {row.keys["step"] for row in select(outcome.rows, method="oracle")} == set(STEPS)
    assert {row.n for row in outcome.rows} == {256}
    assert value(outcome, "diverged tasks", step=16) == 0


def test_the_oracle_is_the_best_and_learning_alone_is_not(outcome: Outcome) -> None:
    for step in STEPS:
        best = min(select(outcome.rows, "test loss", step=step), key=lambda row: row.value)
        assert best.keys["method"] == "oracle"


def test_every_method_changes_what_learners_learn(outcome: Outcome) -> None:
    losses = [row.value for row in select(outcome.rows, "test loss", step=16)]
    assert len(set(losses)) == len(losses) == 6
    assert {*METHOD} & {name for row in outcome.rows for name in row.keys} == {
        "method",
        "head",
        "mode",
    }


def test_points_are_drawn_with_their_loss_above_the_training_loss(outcome: Outcome) -> None:
    canvases = {drawing.name: drawing.canvas for drawing in figures(outcome)}
    first = canvases["tasks"].axes[TASKS_DRAWN]  # the lower row's
    assert first.get_legend_handles_labels()[1] == ["true", "NC direct", "NC posterior"]
    least = outcome.tensors["none/predicted/posterior"].argmin()
    drawn = torch.as_tensor(first.lines[0].get_ydata())
    task = {
        name: outcome.tensors[f"none/{name}"][least] for name in ("H_tr", "Y_tr", "H_te", "Y_te")
    }
    loss_tr = (task["H_tr"] - task["Y_tr"]).square().mean()
    assert torch.allclose(drawn, (task["H_te"] - task["Y_te"])[:, 0].square() - loss_tr)
    line = canvases["meta-training"].axes[0].lines[0]
    seconds = [status.seconds for status in next(iter(outcome.history.values()))]
    assert torch.as_tensor(line.get_xdata()).tolist() == seconds


def test_the_defaults_are_the_papers() -> None:
    training = PRESETS["paper"]().direct
    assert (training.encoder_layers, training.width, training.decoder_layers) == (3, 1024, 3)
    assert (training.batch, training.lr, training.supervision) == (512, 0.0005, "set")
    assert (training.pool_first, training.scale_by_width) == (True, True)
    assert (training.warmup, training.decay, training.spread_weights) == (0.0, False, False)


def test_diverged_learners_are_left_out_of_all_methods_and_counted() -> None:
    torch.set_default_dtype(torch.float32)
    config = smoke()
    short = replace(config.posterior, iterations=2, tasks=16)
    config = replace(config, lr=0.2, steps=12, eval_tasks=64, posterior=short, direct=short)
    rows = run(config, Workspace(None)).rows
    (diverged,) = (row for row in rows if row.metric == "diverged tasks")
    assert 0 < diverged.value < 63
    assert {row.n for row in rows if row.metric != "diverged tasks"} == {64 - diverged.value}


def test_when_all_learners_diverge_the_run_says_so() -> None:
    torch.set_default_dtype(torch.float32)
    short = replace(smoke().posterior, iterations=1, tasks=16)
    config = replace(smoke(), lr=1e6, eval_tasks=16, posterior=short, direct=short)
    with pytest.raises(
        FloatingPointError, match="learners must not all diverge, got 0 that did not"
    ):
        run(config, Workspace(None))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
        ({"learner_layers": -1}, "learner_layers must be at least 0, got -1"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]

"""Section 4.1: NC on sinusoid regression, its fit to the gap and its use as a regularizer."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.experiments.base.comparison import (
    Method,
    nc_method,
    oracle,
    sinusoid_recipe,
    train_with,
)
from neural_complexity.experiments.base.configs import Basics, check_least
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.training import Training, ours, train_validated
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.evaluate import CHUNK, Trajectory, predict_gaps, usable_tasks
from neural_complexity.meta.scores import (
    Estimate,
    correlation,
    count,
    estimate,
    estimate_mean,
    mean_absolute_error,
    r_squared,
    share_of_oracle,
)
from neural_complexity.meta.training_loop import Moment
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids

__all__ = ["NAME", "PRESETS", "Config", "cpu", "paper", "run", "smoke"]

NAME = "sinusoid"
REPORTED_STEPS = (1, 2, 4, 8, 16)
PAPER_LOSS = {
    "none": {1: 4.17, 2: 4.04, 4: 4.05, 8: 4.04, 16: 4.05},
    "NC": {1: 3.87, 2: 3.60, 4: 3.36, 8: 3.13, 16: 2.93},
}
PAPER_R2 = 0.9589


@dataclass(frozen=True, kw_only=True)
class Config(Basics):
    """Sinusoid regression; the defaults are the paper's."""

    learner_width: int = 40
    """Units of each hidden layer of the learner."""
    learner_layers: int = 2
    """Hidden layers of the learner."""
    steps: int = 16
    """Updates of the learner."""
    lr: float = 0.01
    """Learning rate of the learner (SGD)."""
    posterior: Training = field(default_factory=Training)
    """NC with our head."""
    direct: Training = field(default_factory=Training)
    """NC with the paper's head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "learner_width", "steps")
        if self.learner_layers < 0:
            raise ValueError(f"learner_layers must not be negative, got {self.learner_layers}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")


def paper() -> Config:
    """The paper's wiring and sizes, for a GPU."""
    return Config()


def cpu() -> Config:
    """Minutes on two cores."""
    sizes = partial(ours, width=128, batch=128, updates=32, capacity=150_000)
    return Config(posterior=sizes(iterations=200), direct=sizes(iterations=300, tasks=256))


def smoke() -> Config:
    """Seconds; what CI runs."""
    tiny = ours(width=32, batch=64, tasks=64, updates=10, iterations=20, capacity=10_000)
    return Config(eval_tasks=256, posterior=tiny, direct=tiny)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Meta-trains NC with both heads and scores them on held-out tasks.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    family = Sinusoids()
    recipe = sinusoid_recipe(
        width=config.learner_width, layers=config.learner_layers, steps=config.steps, lr=config.lr
    )
    networks: dict[str, NeuralComplexity] = {}
    history: dict[str, list[Moment]] = {}
    for head in HEADS:
        networks[head], history[head] = train_validated(
            getattr(config, head),
            head,
            family,
            recipe,
            seed=config.seed,
            device=config.device,
            folder=folder,
            tell=tell,
        )
    task = family.sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    unlabelled = family.sample(config.eval_tasks, stream(config.seed, "unlabelled inputs")).X_te
    task, unlabelled = task.to(config.device), unlabelled.to(config.device)
    trajectories = _follow_all(config, recipe, task, unlabelled, networks, tell)
    kept = usable_tasks(trajectory.finite for trajectory in trajectories.values())
    task = task[kept]
    trajectories = {method: trajectory[kept] for method, trajectory in trajectories.items()}
    rows = [
        _row(config, "all", f"{config.steps} steps", "diverged tasks", count(~kept), None),
        *_loss_rows(config, trajectories),
        *_belief_rows(config, task, networks["posterior"]),
        *_fit_rows(config, trajectories, networks),
    ]
    return Outcome(rows, _figure_tensors(task, trajectories, networks), networks, history)


def _follow_all(
    config: Config,
    recipe: Recipe,
    task: Task,
    unlabelled: Tensor,
    networks: dict[str, NeuralComplexity],
    tell: Tell | None,
) -> dict[str, Trajectory]:
    """Lets the same initial learners learn the same tasks under each penalty, by method."""
    methods = [Method("none")]
    for head, nc in networks.items():
        methods.append(nc_method(f"NC {head}, transductive", nc, task))
        methods.append(nc_method(f"NC {head}, inductive", nc, task, X_unlabelled=unlabelled))
    methods.append(oracle(recipe, task))
    trajectories, start = {}, time.perf_counter()
    for method in methods:
        trajectory = train_with(method, recipe, task, seed=config.seed)
        trajectories[method.name] = trajectory
        if tell is not None:
            facts = {f"loss, {method.name}": trajectory.loss_te[-1].mean().item()}
            seconds = time.perf_counter() - start
            tell("evaluation", len(trajectories), len(methods), seconds, facts)
    return trajectories


def _row(
    config: Config,
    method: str,
    setting: str,
    metric: str,
    score: Estimate,
    paper: float | None = None,
) -> Row:
    return score_row(NAME, config.seed, method, setting, metric, score, paper)


def _loss_rows(config: Config, trajectories: dict[str, Trajectory]) -> list[Row]:
    """Test loss after a number of steps, and the share of the oracle."""
    rows = []
    none, oracle = trajectories["none"], trajectories["oracle"]
    for method, trajectory in trajectories.items():
        published = PAPER_LOSS.get("NC" if method.endswith("transductive") else method, {})
        for step in sorted({*REPORTED_STEPS, config.steps}):
            if step > config.steps:
                continue
            setting = f"{step} steps"
            loss = estimate_mean(trajectory.loss_te[step])
            rows.append(_row(config, method, setting, "test loss", loss, published.get(step)))
            loss = estimate_mean(trajectory.loss_tr[step])
            rows.append(_row(config, method, setting, "train loss", loss, None))
            if method not in ("none", "oracle"):
                losses = (t.loss_te[step] for t in (none, trajectory, oracle))
                share = estimate(share_of_oracle, *losses)
                rows.append(_row(config, method, setting, "share of oracle", share, None))
    return rows


def _belief_rows(config: Config, task: Task, nc: NeuralComplexity) -> list[Row]:
    """The posterior head's own mean as a predictor: what regularizing with it pulls h towards."""
    losses = []
    with torch.no_grad():
        for i in range(0, len(task), CHUNK):
            part = task[i : i + CHUNK]
            own = nc.belief(part.X_tr, part.Y_tr, part.X_te).prediction
            losses.append(nc.loss(own, part.Y_te).mean(dim=1))
    loss = estimate_mean(torch.cat(losses))
    return [_row(config, "NC posterior, its beliefs", "no learner", "test loss", loss, None)]


def _fit_rows(
    config: Config, trajectories: dict[str, Trajectory], networks: dict[str, NeuralComplexity]
) -> list[Row]:
    """How well each NC predicts the gap where learners end, without and with its own help."""
    rows = []
    scores = {"R2": r_squared, "correlation": correlation, "MAE": mean_absolute_error}
    for head, nc in networks.items():
        ends = {
            "unregularized endpoints": trajectories["none"],
            "regularized endpoints": trajectories[f"NC {head}, transductive"],
        }
        for setting, trajectory in ends.items():
            predicted = predict_gaps(nc, trajectory.end)
            for metric, score in scores.items():
                value = estimate(score, predicted, trajectory.gap)
                published = PAPER_R2 if metric == "R2" else None
                rows.append(_row(config, f"NC {head}", setting, metric, value, published))
    return rows


def _figure_tensors(
    task: Task, trajectories: dict[str, Trajectory], networks: dict[str, NeuralComplexity]
) -> dict[str, Tensor]:
    """Everything the figures need, so that they can be drawn again without the run."""
    tensors: dict[str, Tensor] = {}
    for method, trajectory in trajectories.items():
        tensors[f"loss_tr/{method}"] = trajectory.loss_tr.mean(dim=1)
        tensors[f"loss_te/{method}"] = trajectory.loss_te.mean(dim=1)
    shown = slice(0, 512)  # tasks drawn one by one are chosen among these
    end = trajectories["none"].end[shown]
    tensors |= {f"tasks/{name}": tensor for name, tensor in end.named().items()}
    tensors["tasks/Y_te"] = task.Y_te[shown]
    for head, nc in networks.items():
        for kind, method in (
            ("unregularized", "none"),
            ("regularized", f"NC {head}, transductive"),
        ):
            tensors[f"predicted/{kind}/{head}"] = predict_gaps(nc, trajectories[method].end)
            tensors[f"gap/{kind}/{head}"] = trajectories[method].gap
        with torch.no_grad():
            tensors[f"points/{head}"] = nc.predict_points(*end.tensors())
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

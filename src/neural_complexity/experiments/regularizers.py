"""Appendix B, the table of regularizers: NC against norms, noise, MetaReg and early stopping."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.baselines.metareg import train_metareg
from neural_complexity.experiments.base.comparison import (
    FEW,
    Method,
    dropout,
    everywhere,
    losses_at,
    nc_method,
    norm,
    oracle,
    sinusoid_recipe,
    train_with,
    variational_dropout,
)
from neural_complexity.experiments.base.configs import AsksNetworks, check_least
from neural_complexity.experiments.base.networks import how_made, load_networks
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.evaluate import Trajectory
from neural_complexity.meta.scores import count, estimate, estimate_mean, share_of_oracle
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.regularizers.norms import weighted_l1_penalty
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids

__all__ = ["NAME", "PRESETS", "STEPS", "Config", "cpu", "paper", "run", "smoke"]

NAME = "regularizers"
STEPS = (1, 2, 4, 8, 16)
WEIGHTS = (0.5, 1.0, 2.0, 4.0)  # of NC
NORM_WEIGHTS = {
    "L1": (10.0, 1.0, 0.1, 0.01),
    "L2": (10.0, 1.0, 0.1, 0.01),
    "L1,inf": (1.0, 0.1, 0.01),
    "L3,1.5": (1.0, 0.1, 0.01),
    "orthogonal": (1.0, 0.1, 0.01),
    "Frobenius": (1.0, 0.1, 0.01),
}
DROPOUT = (0.1, 0.3, 0.5, 0.7, 0.9)
# The paper's table; its dropout of 0.9 gave no number after 16 steps.
PAPER: dict[str, tuple[float | None, ...]] = {
    "none": (4.17, 4.04, 4.05, 4.04, 4.05),
    "L1 (10)": (4.21, 4.26, 4.26, 4.25, 4.25),
    "L1 (1)": (4.08, 4.00, 3.98, 4.03, 4.13),
    "L1 (0.1)": (4.07, 3.98, 3.95, 4.01, 4.12),
    "L1 (0.01)": (4.08, 3.98, 3.95, 4.04, 4.16),
    "L2 (10)": (4.10, 4.11, 4.17, 4.22, 4.32),
    "L2 (1)": (4.08, 3.98, 3.94, 3.96, 4.00),
    "L2 (0.1)": (4.07, 3.98, 4.03, 4.03, 4.14),
    "L2 (0.01)": (4.08, 3.98, 3.96, 4.04, 4.16),
    "L1,inf (1)": (4.08, 4.04, 4.07, 4.08, 4.08),
    "L1,inf (0.1)": (4.07, 3.98, 3.95, 4.01, 4.12),
    "L1,inf (0.01)": (4.08, 3.98, 3.96, 4.04, 4.16),
    "L3,1.5 (1)": (4.07, 4.03, 4.11, 4.09, 4.07),
    "L3,1.5 (0.1)": (4.08, 3.99, 3.95, 4.00, 4.08),
    "L3,1.5 (0.01)": (4.07, 3.98, 3.95, 4.04, 4.15),
    "orthogonal (1)": (4.16, 4.17, 4.19, 4.22, 4.32),
    "orthogonal (0.1)": (4.08, 4.00, 3.96, 3.99, 4.06),
    "orthogonal (0.01)": (4.07, 3.99, 3.95, 4.00, 4.14),
    "Frobenius (1)": (4.08, 4.01, 4.04, 4.13, 4.13),
    "Frobenius (0.1)": (4.07, 3.98, 3.95, 4.02, 4.11),
    "Frobenius (0.01)": (4.08, 3.98, 3.96, 4.04, 4.15),
    "dropout (0.1)": (4.08, 3.98, 3.96, 4.04, 4.15),
    "dropout (0.3)": (4.08, 3.98, 3.95, 4.02, 4.12),
    "dropout (0.5)": (4.08, 3.99, 3.95, 4.00, 4.07),
    "dropout (0.7)": (4.10, 4.00, 3.96, 3.98, 4.02),
    "dropout (0.9)": (4.17, 4.11, 4.09, 4.37, None),
    "MetaReg": (4.04, 3.93, 3.89, 3.90, 4.00),
    "NC direct (1)": (3.87, 3.60, 3.36, 3.13, 2.93),
}


@dataclass(frozen=True, kw_only=True)
class Config(AsksNetworks):
    """The table of regularizers; the defaults are the paper's where it says."""

    metareg_iterations: int = 2000
    """Updates of MetaReg's weights."""
    metareg_tasks: int = 256
    """Tasks per update of MetaReg."""
    metareg_lr: float = 0.01
    """The learning rate of MetaReg's weights."""
    held_out_points: int = 3
    """Early stopping: how many of the ten training points tell when to stop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "metareg_iterations", "metareg_tasks")
        if not self.metareg_lr > 0:
            raise ValueError(f"metareg_lr must be positive, got {self.metareg_lr}")
        most = Sinusoids().train_points - 1
        if not 1 <= self.held_out_points <= most:
            raise ValueError(
                f"held_out_points must be from 1 to {most}, got {self.held_out_points}"
            )


def paper() -> Config:
    """As long as one likes to wait."""
    return Config(metareg_iterations=20_000)


def cpu() -> Config:
    """Minutes on two cores."""
    return Config(metareg_iterations=600)


def smoke() -> Config:
    """Seconds; what CI runs."""
    return Config(eval_tasks=128, metareg_iterations=3, metareg_tasks=16)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Trains the same learners on the same held-out tasks under every regularizer.

    Args:
        config: The settings.
        folder: Where finished parts are kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    recipe = sinusoid_recipe(steps=max(STEPS))
    networks = load_networks(config.networks, config.device)
    family = Sinusoids()
    task = family.sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    task = task.to(config.device)
    metareg = _metareg(config, family, recipe, folder, tell)
    methods = [*_methods(recipe, task, networks), metareg]
    pieces = Pieces(len(methods) + 1, config, folder, tell)
    results: dict[str, dict[str, Tensor]] = {}
    for method in methods:

        def work(method: Method = method) -> dict[str, Tensor]:
            return losses_at(train_with(method, recipe, task, seed=config.seed), STEPS)

        results[method.name] = pieces.do(method.name, work)
    stopped = f"early stopping ({config.held_out_points} points)"
    results[stopped] = pieces.do(stopped, lambda: _stop_early(config, recipe, task))
    return Outcome(_rows(config, results), {}, facts=how_made(networks, pieces))


def _methods(recipe: Recipe, task: Task, networks: dict[str, NeuralComplexity]) -> list[Method]:
    norms = [norm(name, w) for name, weights in NORM_WEIGHTS.items() for w in weights]
    noises = [*(dropout(p) for p in DROPOUT), variational_dropout()]
    ncs = [
        nc_method(f"NC {head} ({weight:g})", nc, task, weight=weight)
        for head, nc in networks.items()
        for weight in WEIGHTS
    ]
    return [Method("none"), oracle(recipe, task), *norms, *noises, *ncs]


def _metareg(
    config: Config, family: Sinusoids, recipe: Recipe, folder: Path | None, tell: Tell | None
) -> Method:
    def watch(done: int, seconds: float, loss: float) -> None:
        if tell is not None:
            tell("MetaReg", done, config.metareg_iterations, seconds, {"test loss": loss})

    weights = train_metareg(
        family,
        recipe,
        seed=config.seed,
        iterations=config.metareg_iterations,
        tasks=config.metareg_tasks,
        lr=config.metareg_lr,
        device=config.device,
        folder=folder,
        watch=watch,
    )
    return Method("MetaReg", everywhere(weighted_l1_penalty(weights)))


def _stop_early(config: Config, recipe: Recipe, task: Task) -> dict[str, Tensor]:
    """Trains on some of the training points and goes back to where the others were fitted best."""
    rest = task.X_tr.shape[1] - config.held_out_points
    judged = Task(
        task.X_tr[:, :rest], task.Y_tr[:, :rest], task.X_tr[:, rest:], task.Y_tr[:, rest:]
    )
    tested = Task(task.X_tr[:, :rest], task.Y_tr[:, :rest], task.X_te, task.Y_te)
    # The same learners twice: training does not depend on what is only looked at.
    judge, test = (
        train_with(Method("none"), recipe, t, seed=config.seed) for t in (judged, tested)
    )
    fit = judge.loss_te.nan_to_num(nan=torch.inf)  # what is not a number is not the best
    best = torch.stack([fit[: step + 1].argmin(dim=0) for step in range(recipe.steps + 1)])
    loss_tr, loss_te = (curve.gather(0, best) for curve in (test.loss_tr, test.loss_te))
    return losses_at(Trajectory(loss_tr, loss_te, test.end, test.gap), STEPS)


def _rows(config: Config, results: dict[str, dict[str, Tensor]]) -> list[Row]:
    """Test loss after each number of steps, the share of the oracle, and who diverged."""
    row = partial(score_row, NAME, config.seed)
    rows = []
    none, best = results["none"], results["oracle"]
    for name, result in results.items():
        for i, step in enumerate(STEPS):
            setting, diverged = f"{step} steps", result["diverged"][i]
            rows.append(row(name, setting, "diverged tasks", count(diverged)))
            if diverged.sum() > FEW * diverged.numel():
                continue
            kept = ~diverged
            paper = PAPER[name][i] if name in PAPER else None
            loss = estimate_mean(result["loss_te"][i][kept])
            rows.append(row(name, setting, "test loss", loss, paper))
            rows.append(row(name, setting, "train loss", estimate_mean(result["loss_tr"][i][kept])))
            if name not in ("none", "oracle"):
                three = (none, result, best)
                common = ~torch.stack([r["diverged"][i] for r in three]).any(dim=0)
                share = estimate(share_of_oracle, *(r["loss_te"][i][common] for r in three))
                rows.append(row(name, setting, "share of oracle", share))
    return rows

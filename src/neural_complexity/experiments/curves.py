"""Section 4.1, "Learning Curve", sixty-four times longer than the paper's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from neural_complexity.experiments.base.comparison import (
    FEW,
    Method,
    kept_tasks,
    losses_at,
    nc_method,
    norm,
    oracle,
    sinusoid_recipe,
    train_with,
)
from neural_complexity.experiments.base.configs import AsksNetworks, check_least
from neural_complexity.experiments.base.networks import how_made, load_networks
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.scores import Estimate, count, estimate, estimate_mean, share_of_oracle
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids

__all__ = ["NAME", "PRESETS", "Config", "cpu", "paper", "reported_steps", "run", "smoke"]

NAME = "curves"


@dataclass(frozen=True, kw_only=True)
class Config(AsksNetworks):
    """Long learning curves."""

    steps: int = 1024
    """Updates of the learners; the paper's figure has 16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "steps")


def paper() -> Config:
    """All tasks, for a GPU."""
    return Config()


def cpu() -> Config:
    """Minutes on two cores."""
    return Config(eval_tasks=512)


def smoke() -> Config:
    """Seconds; what CI runs."""
    return Config(eval_tasks=64, steps=32)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def reported_steps(config: Config) -> list[int]:
    """Gives the steps with rows of their own: 1, 2, 4, ..., and the last."""
    powers = [2**i for i in range(config.steps.bit_length())]
    return sorted({*powers, config.steps})


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Lets learners train for long, with and without NC.

    Args:
        config: The settings.
        folder: Where finished parts are kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    networks = load_networks(config.networks, config.device)
    family, seed = Sinusoids(), config.seed
    task = family.sample(config.eval_tasks, stream(seed, "evaluation tasks")).to(config.device)
    other = family.sample(config.eval_tasks, stream(seed, "unlabelled inputs")).X_te
    recipe = sinusoid_recipe(steps=config.steps)
    methods = [Method("none"), norm("L2", 0.01), norm("L2", 1.0)]
    for head, nc in networks.items():
        methods.append(nc_method(f"NC {head}, transductive", nc, task))
        unlabelled = other.to(config.device)
        methods.append(nc_method(f"NC {head}, inductive", nc, task, X_unlabelled=unlabelled))
    methods.append(oracle(recipe, task))
    pieces = Pieces(len(methods), config, folder, tell)
    results = {
        method.name: pieces.do(method.name, partial(_train, config, method, recipe, task))
        for method in methods
    }
    tensors = {
        f"{key}/{name}": result[key][:, ~result["diverged"][-1]].mean(dim=1)
        for name, result in results.items()
        for key in ("loss_tr", "loss_te")
    }
    return Outcome(_rows(config, results), tensors, facts=how_made(networks, pieces))


def _train(config: Config, method: Method, recipe: Recipe, task: Task) -> dict[str, Tensor]:
    trajectory = train_with(method, recipe, task, seed=config.seed)
    return losses_at(trajectory, range(config.steps + 1))


def _rows(config: Config, results: dict[str, dict[str, Tensor]]) -> list[Row]:
    """Losses after some steps, and what whole curves do, of learners that did not diverge."""
    row = partial(score_row, NAME, config.seed)
    rows = []
    none, best = results["none"], results["oracle"]
    for method, result in results.items():
        diverged = result["diverged"][-1]
        rows.append(row(method, f"{config.steps} steps", "diverged tasks", count(diverged)))
        if diverged.sum() > FEW * diverged.numel():
            continue
        loss_tr, loss_te = (result[key][:, ~diverged] for key in ("loss_tr", "loss_te"))
        three = (none, result, best)
        common = kept_tasks(three)
        for step in reported_steps(config):
            setting = f"{step} steps"
            for metric, values in (
                ("test loss", loss_te[step]),
                ("train loss", loss_tr[step]),
                ("gap", loss_te[step] - loss_tr[step]),
            ):
                rows.append(row(method, setting, metric, estimate_mean(values)))
            if method not in ("none", "oracle"):
                share = estimate(share_of_oracle, *(r["loss_te"][step][common] for r in three))
                rows.append(row(method, setting, "share of oracle", share))
        curve_te, curve_tr = loss_te.mean(dim=1), loss_tr.mean(dim=1)  # (steps + 1,)
        whole, n = f"up to {config.steps} steps", loss_te.shape[1]
        for metric, value in (
            ("step of the lowest test loss", curve_te.argmin().item()),
            (
                "share of steps with test below train",
                (curve_te < curve_tr)[1:].double().mean().item(),
            ),
        ):
            rows.append(row(method, whole, metric, Estimate(value, None, n)))
    return rows

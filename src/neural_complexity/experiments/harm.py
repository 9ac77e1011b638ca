"""Do no harm: NC on families of tasks that it was, and was not, trained on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from neural_complexity.experiments.basics import AsksNetworks, check_least
from neural_complexity.experiments.comparison import (
    Method,
    losses_at,
    nc_method,
    oracle,
    sinusoid_recipe,
    train_with,
)
from neural_complexity.experiments.networks import how_made, load_networks
from neural_complexity.experiments.outcome import Outcome
from neural_complexity.experiments.pieces import Pieces
from neural_complexity.experiments.progress import Tell
from neural_complexity.experiments.rows import Row, score_row
from neural_complexity.experiments.training import (
    Training,
    ours,
    train_validated,
)
from neural_complexity.meta.evaluate import CHUNK, predict_gaps
from neural_complexity.meta.scores import Estimate, estimate, estimate_mean, r_squared
from neural_complexity.meta.session import Moment
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.regularizers.trust import trust
from neural_complexity.seeding import stream
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.gaussian_process import GaussianProcesses
from neural_complexity.tasks.sinusoid import Sinusoids
from neural_complexity.tasks.step_functions import StepFunctions
from neural_complexity.tasks.tables import Tables

__all__ = [
    "FAMILIES",
    "HEADS",
    "MODES",
    "NAME",
    "PRESETS",
    "Config",
    "cpu",
    "paper",
    "run",
    "smoke",
]

NAME = "harm"
HEADS: tuple[Literal["posterior", "direct"], ...] = ("posterior", "direct")
# To train NC on, and to judge it on: for real tables these are different rows.
FAMILIES: dict[str, tuple[TaskFamily, TaskFamily]] = {
    "sinusoids": (Sinusoids(), Sinusoids()),
    "Gaussian processes": (GaussianProcesses(), GaussianProcesses()),
    "step functions": (StepFunctions(), StepFunctions()),
    "real tables": (Tables(part="first"), Tables(part="second")),
}
FLOOR = -0.1  # the paper's, in its image experiments
MODES = ("as in the paper", f"floor {FLOOR}", "safeguarded")
UNCHANGED = 0.01  # a test loss that moved by less than this part of the plain one did not change
SHOWN = 512  # tasks drawn one by one


@dataclass(frozen=True, kw_only=True)
class Config(AsksNetworks):
    """NC on its own and on other families of tasks."""

    steps: int = 16
    """Updates of the learners."""
    posterior: Training = field(default_factory=Training)
    """NC with our head, for each of the other families."""
    direct: Training = field(default_factory=Training)
    """NC with the paper's head, for each of the other families."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "steps")


def paper() -> Config:
    """The paper's wiring and sizes, for a GPU; the paper has no such experiment."""
    return Config()


def cpu() -> Config:
    """Minutes on two cores."""
    sizes = ours(width=128, batch=128, updates=32, capacity=150_000, iterations=50, tasks=256)
    return Config(eval_tasks=2048, posterior=sizes, direct=sizes)


def smoke() -> Config:
    """Seconds; what CI runs."""
    tiny = ours(width=16, batch=32, tasks=16, updates=4, iterations=3, capacity=10_000)
    return Config(eval_tasks=64, posterior=tiny, direct=tiny)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Trains NC on each family and lets it regularize learners on all of them.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    networks: dict[tuple[str, str], NeuralComplexity] = {}
    history: dict[str, list[Moment]] = {}
    shipped = load_networks(config.networks, config.device)
    for head in HEADS:
        for family in FAMILIES:
            if family == "sinusoids":
                networks[head, family] = shipped[head]
                continue
            name = f"{head}, {family}"
            networks[head, family], history[name] = _train(config, head, family, folder, tell)
    pieces = Pieces(len(FAMILIES) * (2 + len(networks) * len(MODES)), folder, tell)
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    for family, (_, held_out) in FAMILIES.items():
        task = held_out.sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
        task = task.to(config.device)
        results = _judge(config, family, task, networks, pieces)
        rows += _rows(config, family, results)
        tensors |= _drawn(family, results)
    return Outcome(rows, tensors, {}, history, how_made(shipped, pieces))


def _train(
    config: Config,
    head: Literal["posterior", "direct"],
    family: str,
    folder: Path | None,
    tell: Tell | None,
) -> tuple[NeuralComplexity, list[Moment]]:
    return train_validated(
        getattr(config, head),
        head,
        FAMILIES[family][0],
        sinusoid_recipe(steps=config.steps),
        seed=config.seed,
        device=config.device,
        name=f"{head}, {family}",
        folder=folder,
        tell=tell,
    )


Results = dict[str, dict[str, Tensor]]


def _judge(
    config: Config,
    family: str,
    task: Task,
    networks: dict[tuple[str, str], NeuralComplexity],
    pieces: Pieces,
) -> Results:
    """Trains learners on one family under every NC, and without, by method."""
    recipe = sinusoid_recipe(steps=config.steps)

    def train(method: Method, nc: NeuralComplexity | None = None) -> dict[str, Tensor]:
        trajectory = train_with(method, recipe, task, seed=config.seed)
        result = losses_at(trajectory, [recipe.steps])
        if nc is not None:
            result |= {"trust": _trust(nc, task)}
        if method.name == "none":
            result |= {"gap": trajectory.gap}
            for (head, source), asked in networks.items():
                predicted = predict_gaps(asked, trajectory.end)
                result[f"predicted/NC {head} of {source}"] = predicted
        return result

    results: Results = {}
    for method in (Method("none"), oracle(recipe, task)):
        results[method.name] = pieces.do(f"{family}: {method.name}", partial(train, method))
    options: tuple[dict[str, Any], ...] = ({}, {"floor": FLOOR}, {"safeguard": True})
    for (head, source), nc in networks.items():
        for mode, option in zip(MODES, options, strict=True):
            name = f"NC {head} of {source}, {mode}"
            method = nc_method(name, nc, task, **option)
            asked = nc if mode == "safeguarded" else None
            results[name] = pieces.do(f"{family}: {name}", partial(train, method, asked))
    return results


def _trust(nc: NeuralComplexity, task: Task) -> Tensor:
    parts = [task[i : i + CHUNK] for i in range(0, len(task), CHUNK)]
    return torch.cat([trust(nc, part.X_tr, part.Y_tr) for part in parts])


def _rows(config: Config, family: str, results: Results) -> list[Row]:
    """Test losses, their change by NC, and the share of tasks helped, unchanged and hurt."""
    row = partial(score_row, NAME, config.seed)
    none = results["none"]["loss_te"][-1]  # (B,)
    rows = []
    for method, result in results.items():
        diverged = result["diverged"][-1]
        count = Estimate(float(diverged.sum()), 0.0, diverged.numel())
        rows.append(row(method, family, "diverged tasks", count))
        loss = result["loss_te"][-1]
        # A learner that diverges under NC was hurt, but has no loss to average.
        kept = loss.isfinite() & none.isfinite()
        rows.append(row(method, family, "test loss", estimate_mean(loss[kept])))
        if method in ("none", "oracle"):
            continue
        change = loss - none
        rows.append(row(method, family, "change", estimate_mean(change[kept])))
        helped, hurt = change < -UNCHANGED * none, ~(change <= UNCHANGED * none)
        for metric, these in (
            ("helped", helped),
            ("unchanged", ~helped & ~hurt),
            ("hurt", hurt),
        ):
            rows.append(row(method, family, metric, estimate_mean(these.double())))
        if "trust" in result:
            rows.append(row(method, family, "trust", estimate_mean(result["trust"])))
    plain = results["none"]
    for key in (key for key in plain if key.startswith("predicted/")):
        score = estimate(r_squared, plain[key], plain["gap"])
        rows.append(row(key.removeprefix("predicted/"), family, "R2", score))
    return rows


def _drawn(family: str, results: Results) -> dict[str, Tensor]:
    """Gives, for some tasks, how far NC is trusted and what it does without the safeguard."""
    tensors = {}
    none = results["none"]["loss_te"][-1][:SHOWN]
    for method, result in results.items():
        if "trust" in result:
            nc = method.rsplit(", ", 1)[0]
            plain = results[f"{nc}, {MODES[0]}"]["loss_te"][-1][:SHOWN]
            tensors[f"trust/{nc}/{family}"] = result["trust"][:SHOWN]
            tensors[f"change/{nc}/{family}"] = (plain - none) / none
    return tensors

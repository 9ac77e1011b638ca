"""Do no harm: NC on families of tasks that it was, and was not, trained on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_complexity.experiments.base.comparison import (
    Method,
    losses_at,
    nc_method,
    oracle,
    sinusoid_recipe,
    train_with,
)
from neural_complexity.experiments.base.configs import AsksNetworks, check_least
from neural_complexity.experiments.base.networks import HEADS, how_made, load_networks
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.training import (
    Training,
    ours,
    train_validated,
)
from neural_complexity.meta.evaluate import CHUNK, predict_gaps
from neural_complexity.meta.scores import count, estimate, estimate_mean, r_squared
from neural_complexity.meta.training_loop import Moment
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.regularizers.trust import trust
from neural_complexity.seeding import stream
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.gaussian_process import GaussianProcesses
from neural_complexity.tasks.polynomials import Polynomials
from neural_complexity.tasks.sinusoids import Sinusoids
from neural_complexity.tasks.sklearn_tables import Tables
from neural_complexity.tasks.step_functions import StepFunctions

__all__ = [
    "JUDGED",
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
SOURCES = ("sinusoids", "Gaussian processes", "step functions", "real tables")  # to train NC on
# To judge it on.
JUDGED = (*SOURCES, "polynomials")
FLOOR = -0.1  # the paper's, in its image experiments
MODES = ("as in the paper", f"floor {FLOOR}", "safeguarded")
UNCHANGED = 0.01  # a test loss that moved by less than this part of the plain one did not change
SHOWN = 512  # tasks drawn one by one


def family(name: str, *, held_out: bool) -> TaskFamily:
    """Gives a family by its name; for real tables, held-out tasks have rows of their own."""
    families: dict[str, TaskFamily] = {
        "sinusoids": Sinusoids(),
        "Gaussian processes": GaussianProcesses(),
        "step functions": StepFunctions(),
        "real tables": Tables(part="second" if held_out else "first"),
        "polynomials": Polynomials(),
    }
    return families[name]


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
        networks[head, "sinusoids"] = shipped[head]
        for source in SOURCES[1:]:
            name = f"{head}, {source}"
            networks[head, source], history[name] = train_validated(
                getattr(config, head),
                head,
                family(source, held_out=False),
                sinusoid_recipe(steps=config.steps),
                seed=config.seed,
                device=config.device,
                name=name,
                folder=folder,
                tell=tell,
            )
    pieces = Pieces(len(JUDGED) * (2 + len(networks) * len(MODES)), config, folder, tell)
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    for name in JUDGED:
        generator = stream(config.seed, "evaluation tasks")
        task = family(name, held_out=True).sample(config.eval_tasks, generator).to(config.device)
        results = _judge(config, name, task, networks, pieces)
        rows += _rows(config, name, results)
        tensors |= _drawn(name, results)
    trained = {f"{head}-{s.replace(' ', '-')}": nc for (head, s), nc in networks.items()}
    return Outcome(rows, tensors, trained, history, how_made(shipped, pieces))


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


def _rows(config: Config, judged: str, results: Results) -> list[Row]:
    """Test losses, their change by NC, and the share of tasks helped, unchanged and hurt."""
    row = partial(score_row, NAME, config.seed)
    plain = results["none"]
    fine = plain["loss_te"][-1].isfinite()  # what diverges without NC says nothing about it
    none = plain["loss_te"][-1][fine]  # (B,)
    rows = []
    for method, result in results.items():
        rows.append(row(method, judged, "diverged tasks", count(result["diverged"][-1])))
        loss = result["loss_te"][-1][fine]
        change = loss - none
        # Learners that NC drove to infinity leave no mean: to leave them out would hide the harm.
        if loss.isfinite().all():
            rows.append(row(method, judged, "test loss", estimate_mean(loss)))
            if method not in ("none", "oracle"):
                rows.append(row(method, judged, "change", estimate_mean(change)))
        if method in ("none", "oracle"):
            continue
        helped, hurt = change < -UNCHANGED * none, ~(change <= UNCHANGED * none)
        for metric, these in (("helped", helped), ("unchanged", ~helped & ~hurt), ("hurt", hurt)):
            rows.append(row(method, judged, metric, estimate_mean(these.double())))
        if "trust" in result:
            rows.append(row(method, judged, "trust", estimate_mean(result["trust"])))
            unguarded = results[f"{method.rsplit(', ', 1)[0]}, {MODES[0]}"]["loss_te"][-1][fine]
            if (loss + unguarded).isfinite().all():
                cost = estimate_mean(loss - unguarded)
                rows.append(row(method, judged, "change by the safeguard", cost))
    for key in (key for key in plain if key.startswith("predicted/")):
        known = (plain[key] + plain["gap"]).isfinite()
        score = estimate(r_squared, plain[key][known], plain["gap"][known])
        rows.append(row(key.removeprefix("predicted/"), judged, "R2", score))
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

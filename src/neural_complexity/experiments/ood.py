"""Section 4.2: NC on learners unlike those it was trained on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from neural_complexity.experiments.base.comparison import (
    FEW,
    Method,
    dropout,
    kept_tasks,
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
from neural_complexity.meta.evaluate import predict_gaps
from neural_complexity.meta.scores import (
    count,
    estimate,
    estimate_mean,
    mean_absolute_error,
    r_squared,
    share_of_oracle,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids

__all__ = ["ALTERED", "HOME", "NAME", "PRESETS", "Config", "cpu", "paper", "run", "smoke"]

NAME = "ood"
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "none": nn.Identity,
}
# What is changed of the learner, one thing at a time, and to what.
ALTERED: dict[str, tuple[str | float | int, ...]] = {
    "activation": tuple(ACTIVATIONS),
    "lr": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "width": (5, 10, 20, 40, 80, 160, 320),
    "layers": (1, 2, 3, 4),
    "steps": (16, 64, 256, 1024, 4096),
}
# The learners that NC was trained on.
HOME: dict[str, str | float | int] = {
    "activation": "relu",
    "lr": 1e-2,
    "width": 40,
    "layers": 2,
    "steps": 16,
}
LONG, WIDE = 256, 256  # learners with more steps, or with wider layers, get fewer tasks
MOST = 0.5  # the share of learners that must not have diverged for R2 to mean anything


@dataclass(frozen=True, kw_only=True)
class Config(AsksNetworks):
    """Learners unlike those that NC was trained on."""

    long_tasks: int = 8192
    """Held-out tasks for learners with more than 256 steps, or with 320 units."""
    most_steps: int = 4096
    """Learners with more steps than this are left out."""
    widest: int = 320
    """Learners with wider layers than this are left out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 2, "long_tasks")
        check_least(self, 1, "most_steps", "widest")


def paper() -> Config:
    """All tasks everywhere, for a GPU."""
    return Config()


def cpu() -> Config:
    """Minutes on two cores."""
    return Config(eval_tasks=1024, long_tasks=256)


def smoke() -> Config:
    """Seconds; what CI runs."""
    return Config(eval_tasks=64, long_tasks=64, most_steps=16, widest=80)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Changes one thing of the learners at a time, and asks the same NC.

    Args:
        config: The settings.
        folder: Where finished parts are kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    networks = load_networks(config.networks, config.device)
    whole = Sinusoids().sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    whole = whole.to(config.device)
    settings = _settings(config)
    count = len(_methods(_recipe("lr", 1.0), whole, networks))
    pieces = Pieces(len(settings) * count, config, folder, tell)
    rows: list[Row] = []
    for altered, value in settings:
        recipe = _recipe(altered, value)
        fewer = recipe.steps > LONG or (altered == "width" and int(value) > WIDE)
        task = whole[: config.long_tasks] if fewer else whole
        results = {}
        for method in _methods(recipe, task, networks):
            work = partial(_train, config, method, recipe, task, networks)
            results[method.name] = pieces.do(f"{altered} {value}, {method.name}", work)
        rows += _rows(config, f"{altered} {value}", results)
    return Outcome(rows, {}, facts=how_made(networks, pieces))


def _settings(config: Config) -> list[tuple[str, str | float | int]]:
    return [
        (altered, value)
        for altered, values in ALTERED.items()
        for value in values
        if not (altered == "steps" and int(value) > config.most_steps)
        and not (altered == "width" and int(value) > config.widest)
    ]


def _recipe(altered: str, value: str | float | int) -> Recipe:
    if altered == "activation":
        return sinusoid_recipe(activation=ACTIVATIONS[str(value)])
    return sinusoid_recipe(**{altered: value})  # type: ignore[arg-type]


def _methods(recipe: Recipe, task: Task, networks: dict[str, NeuralComplexity]) -> list[Method]:
    # The strengths that did best in the table of regularizers after 16 steps, but for a dropout of
    # 0.7, under which wider learners diverge.
    plain = [Method("none"), norm("L2", 1.0), dropout(0.5), variational_dropout()]
    ncs = [nc_method(f"NC {head}", nc, task) for head, nc in networks.items()]
    return [*plain, *ncs, oracle(recipe, task)]


def _train(
    config: Config,
    method: Method,
    recipe: Recipe,
    task: Task,
    networks: dict[str, NeuralComplexity],
) -> dict[str, Tensor]:
    """Gives losses at the end, the gap, and what each NC that matters here predicts for it."""
    trajectory = train_with(method, recipe, task, seed=config.seed)
    result = losses_at(trajectory, [recipe.steps])
    asked = {h: nc for h, nc in networks.items() if method.name in ("none", f"NC {h}")}
    for head, nc in asked.items():
        result[f"predicted/{head}"] = predict_gaps(nc, trajectory.end)
    return result | {"gap": trajectory.gap}


def _rows(config: Config, setting: str, results: dict[str, dict[str, Tensor]]) -> list[Row]:
    """Fit to the gap and test loss, each over the tasks whose learners did not diverge."""
    row = partial(score_row, NAME, config.seed)
    none, best = results["none"], results["oracle"]
    rows = []
    for method, result in results.items():
        diverged = result["diverged"][-1]
        rows.append(row(method, setting, "diverged tasks", count(diverged)))
        kept = ~diverged
        if kept.sum() >= MOST * kept.numel():
            for key in (key for key in result if key.startswith("predicted/")):
                head, learners = key.split("/")[1], "plain" if method == "none" else "regularized"
                columns = (result[key][kept], result["gap"][kept])
                for metric, score in (("R2", r_squared), ("MAE", mean_absolute_error)):
                    name = f"{metric}, {learners} learners"
                    rows.append(row(f"NC {head}", setting, name, estimate(score, *columns)))
        if diverged.sum() > FEW * diverged.numel():
            continue
        rows.append(row(method, setting, "test loss", estimate_mean(result["loss_te"][-1][kept])))
        if method not in ("none", "oracle"):
            kept = kept_tasks([none, result, best])
            losses = (r["loss_te"][-1][kept] for r in (none, result, best))
            rows.append(row(method, setting, "share of oracle", estimate(share_of_oracle, *losses)))
    return rows

"""Section 4.1: NC and MAML, alone and together, on sinusoid regression."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from neural_complexity.baselines.maml import Maml, start_from, train_maml
from neural_complexity.experiments.base.comparison import (
    Method,
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
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.evaluate import predict_gaps
from neural_complexity.meta.scores import (
    Estimate,
    count,
    estimate,
    estimate_mean,
    r_squared,
    share_of_oracle,
)
from neural_complexity.meta.training_loop import Moment, Resume
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids

__all__ = [
    "NAME",
    "PRESETS",
    "STARTS",
    "Config",
    "Initialisation",
    "cpu",
    "method",
    "paper",
    "run",
    "smoke",
]

NAME = "maml"
STARTS = ("random", "MAML")
REPORTED_STEPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Initialisation:
    """How MAML is trained; the defaults are those of Finn et al. (2017) for the sinusoid."""

    iterations: int = 70_000
    """Updates of the initial parameters."""
    tasks: int = 25
    """Tasks per update."""
    steps: int = 1
    """Updates of a learner that gradients flow through."""
    lr: float = 0.001
    """Adam's learning rate, or its peak."""
    warmup: float = 0.0
    """The part of training in which the learning rate rises."""
    decay: bool = False
    """Whether the learning rate then falls to zero along a cosine."""

    def __post_init__(self) -> None:
        check_least(self, 1, "iterations", "tasks", "steps")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be from 0 to below 1, got {self.warmup}")


@dataclass(frozen=True, kw_only=True)
class Config(AsksNetworks):
    """NC with and without MAML; the defaults are the papers'."""

    learner_width: int = 40
    """Units of each hidden layer of the learner."""
    learner_layers: int = 2
    """Hidden layers of the learner."""
    steps: int = 16
    """Updates of the learner."""
    lr: float = 0.01
    """Learning rate of the learner (SGD)."""
    fresh: bool = True
    """Whether NC for MAML's learners starts untrained, not as the NC of random learners."""
    maml: Initialisation = field(default_factory=Initialisation)
    """MAML."""
    posterior: Training = field(default_factory=Training)
    """NC with our head, for learners that start from MAML's parameters."""
    direct: Training = field(default_factory=Training)
    """NC with the paper's head, for learners that start from MAML's parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "learner_width", "steps")
        if self.learner_layers < 0:
            raise ValueError(f"learner_layers must not be negative, got {self.learner_layers}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")


def paper() -> Config:
    """The papers' wirings and sizes, for a GPU."""
    return Config()


# Gradients through five updates and a large learning rate: see docs/deviations.md.
_quick = partial(Initialisation, tasks=64, steps=5, lr=0.02, warmup=0.05, decay=True)
# From nothing, the direct head had not learned to help MAML's learners when it was stopped after a
# third of its time, and some diverged; going on from the NC of random learners, it did at once.
_further = partial(ours, width=128, batch=128, updates=32, lr=0.001, ramp=0.0)


def cpu() -> Config:
    """Minutes on two cores."""
    return Config(
        fresh=False,
        maml=_quick(iterations=2000),
        posterior=_further(iterations=100, tasks=256, capacity=150_000),
        direct=_further(iterations=200, tasks=256, capacity=150_000),
    )


def smoke() -> Config:
    """Seconds; what CI runs."""
    tiny = replace(_further(), batch=32, tasks=16, updates=4, iterations=4, capacity=2000)
    return Config(
        fresh=False, eval_tasks=128, maml=_quick(iterations=40), posterior=tiny, direct=tiny
    )


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def method(start: str, aid: str = "") -> str:
    """Names a curve: where learners start, and what helps them.

    Args:
        start: One of `STARTS`.
        aid: A head of NC, `"oracle"`, or nothing.
    """
    if aid in HEADS:
        return f"{start} + NC {aid}"
    return f"{start} + {aid}" if aid else start


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Trains MAML, then NC on MAML's learners, and scores both on held-out tasks.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    family = Sinusoids()
    random = sinusoid_recipe(
        width=config.learner_width, layers=config.learner_layers, steps=config.steps, lr=config.lr
    )
    networks = {"random": load_networks(config.networks, config.device)}
    history: dict[str, list[Moment]] = {}
    initial, history["MAML"] = _train_maml(config, family, random, folder, tell)
    recipes = {"random": random, "MAML": start_from(random, initial)}
    networks["MAML"] = {}
    for head in HEADS:
        networks["MAML"][head], history[head] = train_validated(
            getattr(config, head),
            head,
            family,
            recipes["MAML"],
            seed=config.seed,
            device=config.device,
            start=None if config.fresh else networks["random"][head],
            folder=folder,
            tell=tell,
        )
    task = family.sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    pieces = Pieces(len(STARTS) * (len(HEADS) + 2), config, folder, tell)
    found = _follow_all(config, recipes, task.to(config.device), networks, pieces)
    kept = torch.stack([f["loss_tr"] + f["loss_te"] for f in found.values()])
    kept = kept.isfinite().flatten(0, 1).all(dim=0)  # (B,)
    if kept.sum() < 2:
        raise FloatingPointError(
            f"learners must not all diverge, got {int(kept.sum())} that did not"
        )
    # A task whose learner diverges under one method is left out of all methods, and counted.
    found = {m: {name: t[..., kept] for name, t in f.items()} for m, f in found.items()}
    rows = [
        _row(config, "all", f"{config.steps} steps", "diverged tasks", count(~kept)),
        *_loss_rows(config, found),
        *_fit_rows(config, found),
    ]
    tensors = {f"initial/{n}": t.detach().cpu().clone() for n, t in initial.state_dict().items()}
    for name, f in found.items():
        tensors |= {f"{key}/{name}": f[key].mean(dim=1) for key in ("loss_tr", "loss_te")}
    facts = how_made(networks["random"], pieces)
    return Outcome(rows, tensors, networks["MAML"], history, facts)


def _train_maml(
    config: Config, family: Sinusoids, recipe: Recipe, folder: Path | None, tell: Tell | None
) -> tuple[nn.Module, list[Moment]]:
    settings = asdict(config.maml)

    def build(resume: Resume | None) -> Maml:
        return Maml(
            family, recipe, seed=config.seed, device=config.device, resume=resume, **settings
        )

    def watch(moment: Moment) -> None:
        if tell is not None:
            facts = {"loss": moment.loss}
            tell("MAML", moment.iteration, moment.iterations, moment.seconds, facts)

    return train_maml(
        build,
        save_every=max(1, config.maml.iterations // 20),
        folder=None if folder is None else folder / "maml",
        identity=json.dumps(asdict(config)),
        watch=watch,
    )


def _follow_all(
    config: Config,
    recipes: dict[str, Recipe],
    task: Task,
    networks: dict[str, dict[str, NeuralComplexity]],
    pieces: Pieces,
) -> dict[str, dict[str, Tensor]]:
    """Lets learners from both starts learn the same tasks, with each aid and with none.

    Returns:
        By method: losses, (steps + 1, B); at the end the gap and what NCs predict it to be, (B,).
    """
    found = {}
    for start, recipe in recipes.items():
        aids = {head: nc_method(head, nc, task) for head, nc in networks[start].items()}
        for aid, aided in {"": Method("none"), **aids, "oracle": oracle(recipe, task)}.items():
            asked = {h: nc for h, nc in networks[start].items() if aid in ("", h)}
            work = partial(_follow, config, recipe, task, aided, asked)
            found[method(start, aid)] = pieces.do(method(start, aid), work)
    return found


def _follow(
    config: Config,
    recipe: Recipe,
    task: Task,
    aided: Method,
    asked: dict[str, NeuralComplexity],
) -> dict[str, Tensor]:
    trajectory = train_with(aided, recipe, task, seed=config.seed)
    predicted = {f"predicted/{h}": predict_gaps(nc, trajectory.end) for h, nc in asked.items()}
    losses = {"loss_tr": trajectory.loss_tr, "loss_te": trajectory.loss_te}
    return {**losses, "gap": trajectory.gap, **predicted}


def _row(config: Config, method: str, setting: str, metric: str, score: Estimate) -> Row:
    # The paper draws these curves but gives no numbers.
    return score_row(NAME, config.seed, method, setting, metric, score)


def _loss_rows(config: Config, found: dict[str, dict[str, Tensor]]) -> list[Row]:
    """Losses after a number of steps, and the share of the oracle from the same start."""
    rows = []
    steps = [s for s in sorted({*REPORTED_STEPS, config.steps}) if s <= config.steps]
    for start in STARTS:
        for aid in ("", *HEADS, "oracle"):
            name = method(start, aid)
            for step in steps:
                setting = f"{step} steps"
                for metric, key in (("test loss", "loss_te"), ("train loss", "loss_tr")):
                    loss = estimate_mean(found[name][key][step])
                    rows.append(_row(config, name, setting, metric, loss))
                if aid in HEADS:
                    others = (method(start), name, method(start, "oracle"))
                    losses = (found[m]["loss_te"][step] for m in others)
                    share = estimate(share_of_oracle, *losses)
                    rows.append(_row(config, name, setting, "share of oracle", share))
    return rows


def _fit_rows(config: Config, found: dict[str, dict[str, Tensor]]) -> list[Row]:
    """How well each NC predicts the gap where learners end, without and with its own help."""
    rows = []
    for start in STARTS:
        for head in HEADS:
            for kind, name in (
                ("unregularized", method(start)),
                ("regularized", method(start, head)),
            ):
                predicted, gap = found[name][f"predicted/{head}"], found[name]["gap"]
                setting = f"{start}, {kind} endpoints"
                score = estimate(r_squared, predicted, gap)
                rows.append(_row(config, f"NC {head}", setting, "R2", score))
    return rows

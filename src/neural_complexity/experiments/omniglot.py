"""Section 4.3: NC on few-shot images, its fit to the gap and its use as a regularizer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.experiments.base.comparison import Penalty, oracle
from neural_complexity.experiments.base.few_shot_images import (
    FewShotConfig,
    LabelTraining,
    direct,
    posterior,
)
from neural_complexity.experiments.base.held_out_tasks import Judge, Scene, make_scene
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.training import train_validated
from neural_complexity.experiments.base.without_learner import (
    PROTOTYPES,
    train_opponent,
    without_learner,
)
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import zero_one
from neural_complexity.meta.evaluate import follow, usable_tasks
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
from neural_complexity.snapshot import Snapshot, gap

__all__ = [
    "KINDS",
    "NAME",
    "PAPER_ACCURACY",
    "PRESETS",
    "Config",
    "cpu",
    "paper",
    "run",
    "smoke",
]

NAME = "omniglot"
PAPER_ACCURACY = 92.93
KINDS = ("MLP", "CNN")  # learners; NC is trained on the first
SCORES = {"R2": r_squared, "correlation": correlation, "MAE": mean_absolute_error}


@dataclass(frozen=True, kw_only=True)
class Config(FewShotConfig):
    """Few-shot images with both heads; the defaults are the paper's."""

    posterior: LabelTraining = field(default_factory=LabelTraining)
    """NC with our head."""
    direct: LabelTraining = field(default_factory=LabelTraining)
    """NC with the paper's head."""
    share_images: bool = False
    """Whether the direct head takes over the posterior head's image encoder and, where attention
    goes by distance, its sense of which images are alike, both trained no further."""


def paper() -> Config:
    """The paper's wiring and sizes, for a GPU."""
    return Config(learner_width=500, lr=0.01, steps=2000)


def cpu() -> Config:
    """Half an hour of meta-training on two cores."""
    return Config(
        eval_tasks=256,
        posterior=posterior(iterations=220, tasks=32),
        direct=direct(iterations=150, tasks=32, updates=24),
        share_images=True,
    )


def smoke() -> Config:
    """Seconds, on whatever images are given; what CI runs."""
    tiny = {"width": 16, "heads": 2, "channels": 8, "iterations": 2, "updates": 4, "tasks": 8}
    return Config(
        ways=4,
        queries=2,
        eval_tasks=16,
        learner_width=16,
        learner_channels=4,
        steps=6,
        posterior=posterior(**tiny, validation_tasks=8),
        direct=direct(**tiny, validation_tasks=8),
        share_images=True,
    )


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Meta-trains NC with both heads and scores them on characters they have never seen.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    family = config.train_family()
    shape = family.images.pixels.shape[1:]
    recipe = config.recipe(shape)
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
            images_from=networks.get("posterior") if config.share_images else None,
            folder=folder,
            tell=tell,
        )
    scene = make_scene(config)
    judges = {"posterior": Judge(networks["posterior"], scene)}
    like = judges["posterior"] if config.share_images else None
    judges["direct"] = Judge(networks["direct"], scene, like)
    plans = _plans(judges, recipe, scene)
    pieces = Pieces(len(plans) * len(KINDS) + len(PROTOTYPES), config, folder, tell)
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    for kind in KINDS:
        results: dict[str, dict[str, Tensor]] = {}
        for method, penalty in plans.items():
            name = f"{method}, {kind}"
            work = partial(_learn, config.recipe(shape, kind), scene, judges, penalty, config)
            results[method] = pieces.do(name, work)
        kept = usable_tasks(_finite(result) for result in results.values())
        results = {m: {k: t[:, kept] for k, t in r.items()} for m, r in results.items()}
        rows += _learner_rows(config, kind, results)
        rows.append(_row(config, "all", f"{kind} learner", "diverged tasks", count(~kept)))
        tensors |= {
            f"{kind}/{m}/{k}": t for m, result in results.items() for k, t in result.items()
        }
    trained = {
        name: pieces.do(
            name, partial(train_opponent, config, config.posterior, family, rounds, tell)
        )
        for name, (rounds, _) in PROTOTYPES.items()
    }
    tensors |= {f"{name}/{k}": t for name, state in trained.items() for k, t in state.items()}
    rows += [
        _row(config, method, "no learner", "accuracy", estimate_mean(100 * right))
        for method, right in without_learner(config, judges["posterior"], trained).items()
    ]
    facts = {"seconds": {name: round(s, 1) for name, s in pieces.seconds.items()}}
    return Outcome(rows, tensors, networks, history, facts)


def _plans(judges: dict[str, Judge], recipe: Recipe, scene: Scene) -> dict[str, Penalty | None]:
    """Gives the regularizer of each method."""
    plans: dict[str, Penalty | None] = {"none": None}
    for head, judge in judges.items():
        plans[f"NC {head}, transductive"] = judge.penalty
        plans[f"NC {head}, inductive"] = partial(judge.penalty, inductive=True)
    plans["oracle"] = oracle(recipe, scene.task).penalty
    return plans


def _learn(
    recipe: Recipe,
    scene: Scene,
    judges: dict[str, Judge],
    penalty: Penalty | None,
    config: Config,
) -> dict[str, Tensor]:
    """Trains one learner per task; gives its losses, and what each NC says about it on the way."""
    task = scene.task
    watched = {0, config.steps, *(2**k for k in range(20) if 2**k < config.steps)}
    seen: dict[str, list[tuple[int, Tensor]]] = {}

    def see(name: str, step: int, values: Tensor) -> None:
        seen.setdefault(name, []).append((step, values))

    def observe(rows: slice, step: int, snapshot: Snapshot) -> None:
        part = task[rows]
        see("accuracy", step, 1 - zero_one(snapshot.H_te, part.Y_te).mean(dim=1))
        if step not in watched:
            return
        see("gap", step, gap(recipe.loss, snapshot, part.Y_te))
        for head, judge in judges.items():
            see(f"predicted/{head}", step, judge.gaps(rows, snapshot))
            belief = judge.belief(rows)
            if belief is not None:
                right = 1 - zero_one.expected(snapshot.H_te, belief).mean(dim=1)
                see("predicted accuracy", step, right)

    trajectory = follow(recipe, task, seed=config.seed, penalty=penalty, observe=observe)
    result = {name: _by_step(values) for name, values in seen.items()}  # (steps, B) each
    return {**result, "loss_tr": trajectory.loss_tr, "loss_te": trajectory.loss_te}


def _by_step(seen: list[tuple[int, Tensor]]) -> Tensor:
    """Joins what was seen of several slices of the tasks, (steps, B)."""
    steps = sorted({step for step, _ in seen})
    return torch.stack([torch.cat([v for at, v in seen if at == step]) for step in steps])


def _finite(result: dict[str, Tensor]) -> Tensor:
    """Tells which learners never diverged, (B,)."""
    return torch.cat(list(result.values())).isfinite().all(dim=0)


def _row(
    config: Config,
    method: str,
    setting: str,
    metric: str,
    score: Estimate,
    paper: float | None = None,
) -> Row:
    return score_row(NAME, config.seed, method, setting, metric, score, paper)


def _learner_rows(config: Config, kind: str, results: dict[str, dict[str, Tensor]]) -> list[Row]:
    """How good learners are under each method, and how well each NC foretells it."""
    rows = []
    none, best = results["none"], results["oracle"]
    for method, result in results.items():
        papers = (kind, method) == ("MLP", "NC direct, transductive")
        published = PAPER_ACCURACY if papers else None
        add = partial(_row, config, method, f"{kind} learner")
        rows.append(add("accuracy", estimate_mean(100 * result["accuracy"][-1]), published))
        rows.append(add("test loss", estimate_mean(result["loss_te"][-1])))
        rows.append(add("train loss", estimate_mean(result["loss_tr"][-1])))
        if method not in ("none", "oracle"):
            losses = (r["loss_te"][-1] for r in (none, result, best))
            rows.append(add("share of oracle", estimate(share_of_oracle, *losses)))
    for head in HEADS:
        own = f"NC {head}, transductive"
        last, every = slice(-1, None), slice(None)
        settings = {
            "unregularized endpoints": ([none], last),
            "regularized endpoints": ([results[own]], last),
            "both, all the way": ([none, results[own]], every),
        }
        for setting, (chosen, steps) in settings.items():
            predicted, true = (
                torch.cat([r[name][steps].flatten() for r in chosen])
                for name in (f"predicted/{head}", "gap")
            )
            for metric, score in SCORES.items():
                value = estimate(score, predicted, true)
                if steps == every:  # a task's steps are not independent, so there is no interval
                    value = Estimate(value.value, None, len(none["gap"][0]))
                rows.append(_row(config, f"NC {head}", f"{kind}, {setting}", metric, value))
    for setting, result in (
        ("unregularized", none),
        ("regularized", results["NC posterior, transductive"]),
    ):
        predicted, true = result["predicted accuracy"][-1], result["accuracy"][-1]
        add = partial(_row, config, "NC posterior", f"{kind}, {setting} endpoints")
        rows.append(add("predicted accuracy", estimate_mean(100 * predicted)))
        rows.append(add("accuracy", estimate_mean(100 * true)))
        rows.append(add("accuracy MAE", estimate(mean_absolute_error, 100 * predicted, 100 * true)))
    return rows

"""The ablation study: NC's components for images and labels, removed one after the other."""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_complexity.experiments.base.comparison import oracle
from neural_complexity.experiments.base.configs import check_least
from neural_complexity.experiments.base.few_shot_images import (
    FewShotConfig,
    LabelTraining,
    direct,
    posterior,
)
from neural_complexity.experiments.base.held_out_tasks import Judge, Scene, make_scene
from neural_complexity.experiments.base.networks import how_made, load_network, load_tensors
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.training import train_validated
from neural_complexity.experiments.base.without_learner import (
    PROTOTYPES,
    train_opponent,
    without_learner,
)
from neural_complexity.experiments.omniglot import PAPER_ACCURACY
from neural_complexity.learners.fit import Regularizer
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import zero_one
from neural_complexity.meta.evaluate import Trajectory, follow
from neural_complexity.meta.scores import (
    Estimate,
    count,
    estimate,
    estimate_mean,
    estimate_over_seeds,
    r_squared,
)
from neural_complexity.meta.trainer import embed_all
from neural_complexity.meta.training_loop import Moment
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.snapshot import Snapshot
from neural_complexity.tasks.few_shot import FewShot

__all__ = [
    "ALL",
    "INDUCTIVE",
    "NAME",
    "ONCE",
    "OURS",
    "PAPER",
    "PRESETS",
    "VARIANTS",
    "Config",
    "cpu",
    "paper",
    "run",
    "seeds_of",
    "smoke",
]

NAME = "ablation"
VARIANTS: dict[str, dict[str, Any]] = {  # what each changes of the full NC
    # The paper's, each with the changes of those before it.
    "full": {},
    "- Huber loss": {"criterion": "squared"},
    "- bias": {"criterion": "squared", "bias": False},
    "- loss conditioning": {"criterion": "squared", "bias": False, "loss_conditioning": False},
    "- bilinear layer": {
        "criterion": "squared",
        "bias": False,
        "loss_conditioning": False,
        "bilinear": False,
    },
    # Ours, each a single change.
    "full, scalar supervision": {"supervision": "set"},
    "full, no made-up hypotheses": {"made_up": 0.0},
    "full, attention on (x, h(x)), as in the paper": {"metric": False, "rounds": 0},
}
PAPER = {
    "full": PAPER_ACCURACY,
    "- Huber loss": 89.74,
    "- bias": 84.30,
    "- loss conditioning": 72.09,
    "- bilinear layer": 23.69,
}
INDUCTIVE = "full, other unlabelled inputs"
OURS = (INDUCTIVE, *(name for name in VARIANTS if name not in PAPER))
ALL, ONCE = "all seeds", "once"  # settings, beside "seed 0", "seed 1", ...


@dataclass(frozen=True, kw_only=True)
class Config(FewShotConfig):
    """Variants of the direct head, each from several seeds; the defaults are the paper's."""

    seeds: int = 3
    """Trainings of each variant, from seeds `seed`, `seed + 1`, ..."""
    training: LabelTraining = field(default_factory=LabelTraining)
    """The full NC with the paper's head."""
    encoder: LabelTraining = field(default_factory=LabelTraining)
    """The NC with our head, whose image encoder and sense of which images are alike all variants
    take over, trained no further."""
    networks: str = ""
    """The folder of a finished run of `omniglot`, to take that NC from; trained here if empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "seeds")


def paper() -> Config:
    """The paper's wiring and sizes, for a GPU."""
    return Config(learner_width=500, lr=0.01, steps=2000)


def cpu() -> Config:
    """An hour on two cores: each variant from three seeds."""
    return Config(
        eval_tasks=128,
        training=direct(iterations=48, tasks=8, updates=24, batch=40, validation_tasks=16),
        encoder=posterior(iterations=220, tasks=32),
    )


def smoke() -> Config:
    """Seconds, on whatever images are given; what CI runs."""
    tiny = {"width": 16, "heads": 2, "channels": 8, "iterations": 2, "updates": 2, "tasks": 8}
    tiny |= {"batch": 16, "decoder_layers": 1, "validation_tasks": 8}
    return Config(
        seeds=2,
        ways=4,
        queries=2,
        eval_tasks=16,
        learner_width=16,
        steps=6,
        training=direct(**tiny),
        encoder=posterior(**tiny),
    )


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def seeds_of(config: Config) -> range:
    """Gives the seeds of the trainings."""
    return range(config.seed, config.seed + config.seeds)


@dataclass(frozen=True)
class Bench:
    """What all variants share: tasks to train on, learners, and the held-out tasks."""

    config: Config
    family: FewShot
    recipe: Recipe
    scene: Scene

    def learn(self, penalty: Callable[[slice], Regularizer] | None = None) -> Trajectory:
        """Trains one learner per held-out task, always from the same initial learners."""
        return follow(self.recipe, self.scene.task, seed=self.config.seed, penalty=penalty)

    def score(self, learners: Trajectory) -> dict[str, Tensor]:
        """Gives what is kept of learners, (B,) each; the test loss is (1, B).

        A learner that diverged is right nowhere.
        """
        right = 1 - zero_one(learners.end.H_te, self.scene.task.Y_te).mean(dim=1)
        return {
            "accuracy": torch.where(learners.finite, right, 0.0),
            "loss_te": learners.loss_te[-1:],
            "diverged": ~learners.finite,
            "gap": learners.gap,
        }


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Meta-trains every variant from every seed and trains the same learners with each.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    family = config.train_family()
    bench = Bench(config, family, config.recipe(family.images.pixels.shape[1:]), make_scene(config))
    encoder, history = _encoder(bench, folder, tell)
    prototypes = _finished_prototypes(config)
    judge = Judge(encoder, bench.scene)
    once = 3 + len(PROTOTYPES) - len(prototypes)
    pieces = Pieces(once + len(VARIANTS) * config.seeds, config, folder, tell)
    plain = pieces.do("no NC", partial(_plain, bench))
    shared = {
        "no NC": plain,
        "oracle": pieces.do("oracle", partial(_oracle, bench)),
        "posterior head": pieces.do("posterior head", partial(_judged, bench, judge, plain)),
    }
    rows = [row for method, kept in shared.items() for row in _rows(config, method, ONCE, kept)]
    embeddings = embed_all(encoder, family)
    results: dict[str, dict[int, dict[str, Tensor]]] = {}
    for seed in seeds_of(config):  # seed by seed: a table can be made of those that are done
        for variant in VARIANTS:
            name = f"{variant}, seed {seed}"
            work = partial(
                _variant, bench, variant, seed, judge, embeddings, plain, name, folder, tell
            )
            kept = pieces.do(name, work)
            if folder is not None:
                shutil.rmtree(folder / name, ignore_errors=True)  # its bank is large
            results.setdefault(variant, {})[seed] = kept
            if variant == "full":
                results.setdefault(INDUCTIVE, {})[seed] = _part(kept, "inductive/")
    for method, by_seed in results.items():
        rows += _seed_rows(config, method, by_seed)
    rows += _others(bench, judge, prototypes, pieces)
    tensors = {
        f"{method}/seed {seed}/{key}": kept[key]
        for method, by_seed in results.items()
        for seed, kept in by_seed.items()
        for key in ("accuracy", "validation R2")
        if key in kept
    }
    facts = how_made({"posterior": encoder}, pieces)
    return Outcome(rows, tensors, {"posterior": encoder}, history, facts)


def _encoder(
    bench: Bench, folder: Path | None, tell: Tell | None
) -> tuple[NeuralComplexity, dict[str, list[Moment]]]:
    """Gives the NC whose image encoder all variants take over, and its training if it was here."""
    config = bench.config
    if config.networks:
        return load_network(config.networks, "posterior", "omniglot", config.device), {}
    nc, moments = train_validated(
        config.encoder,
        "posterior",
        bench.family,
        bench.recipe,
        seed=config.seed,
        device=config.device,
        folder=folder,
        tell=tell,
    )
    return nc, {"posterior": moments}


def _finished_prototypes(config: Config) -> dict[str, dict[str, Tensor]]:
    """Gives the prototypical networks of a finished run, which must be there before hours pass."""
    names = PROTOTYPES if config.networks else ()
    return {name: load_tensors(config.networks, f"{name}/", "omniglot") for name in names}


def _others(
    bench: Bench, judge: Judge, finished: dict[str, dict[str, Tensor]], pieces: Pieces
) -> list[Row]:
    """Gives what classifies the same tasks without a learner."""
    config = bench.config
    prototypes = dict(finished)
    for name, (rounds, _) in PROTOTYPES.items():
        if name not in finished:
            work = partial(
                train_opponent, config, config.encoder, bench.family, rounds, pieces.tell
            )
            prototypes[name] = pieces.do(name, work)
    found = without_learner(config, judge, prototypes)
    return [
        score_row(NAME, config.seed, method, ONCE, "accuracy", estimate_mean(100 * right))
        for method, right in found.items()
    ]


def _plain(bench: Bench) -> dict[str, Tensor]:
    """Trains learners without a regularizer; keeps their predictions, for NCs to judge."""
    learners = bench.learn()
    return {**bench.score(learners), "H_tr": learners.end.H_tr, "H_te": learners.end.H_te}


def _oracle(bench: Bench) -> dict[str, Tensor]:
    return bench.score(bench.learn(oracle(bench.recipe, bench.scene.task).penalty))


def _judged(bench: Bench, judge: Judge, plain: dict[str, Tensor]) -> dict[str, Tensor]:
    """Trains learners with an NC; gives their scores, and the gaps it predicts of all learners."""
    learners = bench.learn(judge.penalty)
    task, everything = bench.scene.task, slice(0, len(bench.scene.task))
    H_tr, H_te = (plain[name].to(task.X_tr.device) for name in ("H_tr", "H_te"))
    return {
        **bench.score(learners),
        "predicted": judge.gaps(everything, learners.end),
        "plain/predicted": judge.gaps(
            everything, Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te)
        ),
        "plain/gap": plain["gap"],
        "plain/diverged": plain["diverged"],
    }


def _variant(
    bench: Bench,
    variant: str,
    seed: int,
    encoder: Judge,
    embeddings: Tensor,
    plain: dict[str, Tensor],
    name: str,
    folder: Path | None,
    tell: Tell | None,
) -> dict[str, Tensor]:
    """Meta-trains one variant from one seed and trains learners with it."""
    nc, moments = train_validated(
        replace(bench.config.training, **VARIANTS[variant]),
        "direct",
        bench.family,
        bench.recipe,
        seed=seed,
        device=bench.config.device,
        name=name,
        images_from=encoder.nc,
        embeddings=embeddings,
        folder=folder,
        tell=tell,
    )
    judge = Judge(nc, bench.scene, encoder)
    kept = _judged(bench, judge, plain)
    if variant == "full":
        inductive = bench.score(bench.learn(partial(judge.penalty, inductive=True)))
        kept |= {f"inductive/{key}": tensor for key, tensor in inductive.items()}
    return {**kept, "validation R2": torch.tensor([moment.r2 for moment in moments])}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def _scores(kept: dict[str, Tensor]) -> dict[str, Estimate]:
    """Scores learners, and the NC that judged them, over tasks; what cannot be told is left out."""
    scores = {
        "accuracy": estimate_mean(100 * kept["accuracy"]),
        "diverged tasks": count(kept["diverged"]),
    }
    fine = ~kept["diverged"]
    if fine.sum() > 1:
        scores["test loss"] = estimate_mean(kept["loss_te"][-1, fine])
    for metric, part in (("R2, unregularized", _part(kept, "plain/")), ("R2, regularized", kept)):
        if "predicted" in part:
            fine = ~part["diverged"] & part["predicted"].isfinite()
            if fine.sum() > 1:
                scores[metric] = estimate(r_squared, part["predicted"][fine], part["gap"][fine])
    return {metric: score for metric, score in scores.items() if math.isfinite(score.value)}


def _rows(config: Config, method: str, setting: str, kept: dict[str, Tensor]) -> list[Row]:
    return [
        score_row(NAME, config.seed, method, setting, metric, score)
        for metric, score in _scores(kept).items()
    ]


def _seed_rows(config: Config, method: str, by_seed: dict[int, dict[str, Tensor]]) -> list[Row]:
    """Makes the rows of each seed, and those over seeds of what every seed has."""
    rows = []
    values: dict[str, list[float]] = {}
    for seed, kept in by_seed.items():
        for row in _rows(config, method, f"seed {seed}", kept):
            rows.append(replace(row, seed=seed))
            values.setdefault(row.metric, []).append(row.value)
    for metric, found in values.items():
        if len(found) == len(by_seed):
            score = estimate_over_seeds(torch.tensor(found, dtype=torch.float64))
            published = PAPER.get(method) if metric == "accuracy" else None
            rows.append(score_row(NAME, config.seed, method, ALL, metric, score, published))
    return rows

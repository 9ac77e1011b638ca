"""Complexity measures: which of them tell how a network generalizes, and where NC stands."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.baselines.measures.catalogue import MEASURES, evaluate_measures
from neural_complexity.baselines.ranking import Hyperparameters, score_measure, sign_errors
from neural_complexity.convert.folds import choose_folds
from neural_complexity.experiments.base.config import Count, RunConfig
from neural_complexity.experiments.base.experiment import Experiment, Outcome, Parts
from neural_complexity.experiments.base.measure_report import (
    AVERAGED,
    CHANCE,
    ELSEWHERE,
    ERROR,
    EVERY,
    FOLDS,
    GAP,
    HOLD_OUT,
    LEAST,
    LOST,
    MODELS,
    OWN,
    PREDICTIONS,
    REFITS,
    TABLES,
    TRAINING,
    figures,
    tables,
)
from neural_complexity.experiments.base.model_zoo import (
    Grid,
    Group,
    NoisySplits,
    Sizes,
    ZooData,
    expected_gap,
    load_data,
    mislabel,
)
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.experiments.base.unseen_digits import RECIPE
from neural_complexity.experiments.base.zoo_training import Stopping, Trained, train_group
from neural_complexity.learners.networks import image_mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.meta_learn import meta_learn, most_updates
from neural_complexity.meta.meta_run import Plan
from neural_complexity.meta.scores import Estimate, count
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import indexed
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.tasks.splits import split_tasks
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "measures"
SMALL = ("digits", "sklearn wine", "sklearn breast_cancer")  # datasets, which need no files
LOSS = "cross-entropy"  # a measure that users have anyway, as their training loss
SEEN = 1024  # points that `meta_learn` shows NC with an update, on labels
FOLDS_OF_CV = 5
FEWEST = 3  # models of a dataset, of which there is something to rank

Scores = dict[str, dict[str, Estimate]]  # by measure and metric
Networks = dict[str, dict[str, NeuralComplexity]]  # by dataset and head


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """A zoo of networks on several datasets, and the measures that are to rank it."""

    datasets: tuple[str, ...] = (*SMALL, "mnist", "fashion-mnist")
    """Images by name, see `run single`, and tables with labels, see `tasks.real_tables`."""
    data: str = ""  # The folder of images; if empty, that of NEURAL_COMPLEXITY_DATA or a cache.
    grid: Grid = field(default_factory=Grid)  # Hyper-parameters of the networks.
    sizes: Sizes = field(default_factory=Sizes)  # Points of each dataset.
    stopping: Stopping = field(default_factory=Stopping)  # When a network is trained.
    iterations: Count = 20  # Collections of learners for each NC.
    updates: Count = 32  # Of NC after each, at most: fewer where there are few points.
    learner_steps: Count = 300  # Updates of the learners that NC learns from.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.datasets or len(set(self.datasets)) < len(self.datasets):
            got = ", ".join(self.datasets) or "none"
            raise ValueError(f"datasets must be at least one, each once, got {got}")


TINY: dict[str, tuple[Any, ...]] = {
    "width": (8,),
    "depth": (1, 2),
    "batch": (16,),
    "lr": (0.2, 0.4),
}
TINY |= {"weight_decay": (0.0,), "dropout": (0.0,), "augmentation": (0.0, 0.3)}
SMOKE: dict[str, Any] = {"datasets": SMALL[:2]}
SMOKE |= {"sizes": Sizes(train=80, test=60, others=120), "iterations": 2, "updates": 2}
SMOKE |= {"stopping": Stopping(target=0.5, every=20, steps=200), "learner_steps": 10}
# Preset `cpu` takes about four hours of one core, most of it to train networks again for 5-fold CV.
PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": partial(Config, grid=Grid(**TINY), **SMOKE),
    "cpu": Config,
    "gpu": partial(
        Config,
        datasets=(*SMALL, "mnist", "fashion-mnist", "kmnist"),
        grid=Grid(width=(32, 128, 512), lr=(0.05, 0.1, 0.2), label_noise=(0.0, 0.1, 0.2)),
    ),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains the zoo and the NCs, computes all measures, and scores how they rank the gaps."""
    data = {n: load_data(n, config.sizes, config.data, seed=config.seed) for n in config.datasets}
    networks = {name: _meta_learn(config, own, work, callback) for name, own in data.items()}
    groups, rows, tensors = config.grid.groups(), list[Row](), dict[str, Tensor]()
    steps = (2 + FOLDS_OF_CV) * len(groups) * len(data)
    parts, scored = Parts(work, steps, callback), dict[str, Scores]()
    for name, own in data.items():
        reported = own.task(own.training[1][None])
        ledger.record("report", reported.X_te, reported.Y_te)
        found = [_measure_group(config, own, group, networks, parts) for group in groups]
        reached = torch.cat([kept["reached"] for kept in found])
        if (trained := int(reached.sum())) < FEWEST:
            wanted = f"let at least {FEWEST} models reach the target"
            raise ValueError(f"stopping must {wanted}, got {trained} of {len(reached)} on {name}")
        names = groups[0].columns
        hyper = {k: torch.cat([group.columns[k] for group in groups])[reached] for k in names}
        found = [kept for kept in found if kept["reached"].any()]
        columns = {k: torch.cat([kept[k] for kept in found]) for k in found[0] if k != "reached"}
        of = partial(Row.of, NAME, config.seed, dataset=name)
        rows += [of(MODELS, count(reached)), of(LOST, count(~reached))]
        least, lost = columns[TRAINING].min().item(), columns.pop(REFITS).sum().item()
        rows.append(of(LEAST, Estimate(least, None, trained)))
        rows.append(of(REFITS, Estimate(lost, None, FOLDS_OF_CV * trained)))
        tensors |= {f"{name}/{measure}": values for measure, values in columns.items()}
        scored[name], more = _score(of, columns, hyper)
        rows += more
    rows += _averages(config, scored)
    ncs = {f"{n}-{h}".replace(" ", "-"): nc for n, own in networks.items() for h, nc in own.items()}
    return Outcome(rows, tensors, ncs, {}, {"seconds": round(sum(parts.seconds.values()), 1)})


def _score(
    of: Callable[..., Row], columns: dict[str, Tensor], hyper: dict[str, Tensor]
) -> tuple[Scores, list[Row]]:
    """Returns how well each measure ranks the models of a dataset, also as rows."""
    measures, gaps, known = dict(columns), columns[GAP].double(), Hyperparameters(hyper)
    del measures[GAP]
    found, rows = Scores(), list[Row]()
    for measure, values in measures.items():
        units = measure in PREDICTIONS
        found[measure] = score_measure(values, gaps, hyper, in_loss_units=units)
        rows += [of(metric, told, measure=measure) for metric, told in found[measure].items()]
        for (name, a, b), error in sign_errors(values.double(), gaps, known).items():
            told = Estimate(error.item(), None, len(gaps))
            environment = f"{name.replace('_', ' ')}: {a:g}, {b:g}"
            rows.append(of(ERROR, told, measure=measure, environment=environment))
    return found, rows


def _meta_learn(
    config: Config, data: ZooData, work: Workspace, callback: ProgressCallback | None
) -> dict[str, NeuralComplexity]:
    """Meta-trains both heads on points, and on learners, that the zoo has nothing to do with."""
    X, y = data.others()
    make = partial(image_mlp, data.shape, (64,), data.classes)
    recipe = RECIPE(make=make, steps=config.learner_steps)
    tasks = NoisySplits(**vars(split_tasks(X, y)), shares=config.grid.label_noise)
    often = round(most_updates(len(y), SEEN) / config.iterations)
    updates = max(1, min(config.updates, often))
    found = dict[str, NeuralComplexity]()
    # Its own report is not needed: NC is judged by the zoo.
    plan = Plan(iterations=config.iterations, updates=updates, learners=8, chosen_by=8)
    for head in HEADS:
        where: Any = {"folder": work.path(f"nc {data.name} {head}"), "device": config.device}
        where |= {"seed": config.seed, "progress": callback or False, "head": head}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how good NC is, is a row
            found[head] = meta_learn(tasks, recipe, plan, **where)
    return found


def _measure_group(
    config: Config, data: ZooData, group: Group, networks: Networks, parts: Parts
) -> dict[str, Tensor]:
    """Returns, of the models of a group that were trained, gaps and all measures, (models,) each.

    `reached` is of all models, (B,): which were trained.
    """
    what, make = f"{data.name}: {group.name}", partial(group.make, data)
    X, _ = data.training
    Y = mislabel(group, data, seed=config.seed)
    fit = partial(train_group, group, make, X, Y, config.stopping)
    kept = parts.do(what, lambda: fit(seed=config.seed, name=data.name).tensors())
    trained, rows = Trained.from_tensors(make(), kept), kept["reached"]
    if not rows.any():
        return {"reached": rows}
    trained, group, Y = trained[rows], group[rows], Y[rows]
    folds = choose_folds(data.training[1].numpy(), FOLDS_OF_CV, labels=True, seed=config.seed)
    refit = partial(_refit, config, data, group, Y)
    refits = [
        parts.do(f"without fold {k}, {what}", partial(refit, f"fold {k}", *fold))
        for k, fold in enumerate(folds)
    ]
    losses = [refit["losses"] for refit in refits]
    lost = torch.stack([~refit["reached"] for refit in refits]).sum(dim=0)  # (B,)
    again = {HOLD_OUT: losses[0].mean(dim=1), FOLDS: torch.cat(losses, dim=1).mean(dim=1)}
    found = parts.do(f"measures, {what}", partial(_measure, data, group, trained, Y, networks))
    # What is predicted is the loss on unseen points.
    told = {name: loss - trained.loss_tr for name, loss in again.items()}
    return {"reached": rows, **found, TRAINING: trained.loss_tr, **told, REFITS: lost}


def _refit(
    config: Config, data: ZooData, group: Group, Y: Tensor, name: str, some: Any, held: Any
) -> dict[str, Tensor]:
    """Trains the same models on some of their points; returns losses on the others, (B, others).

    `reached` says which were trained; the others count as they are.
    """
    X, _ = data.training
    again = partial(train_group, group, partial(group.make, data), X[some], Y[:, some])
    trained = again(config.stopping, seed=config.seed, name=f"{data.name}, {name}")
    with torch.no_grad():
        H = trained.h(X[held].expand(len(group), -1, -1))
        return {"losses": cross_entropy(H, Y[:, held]), "reached": trained.reached}


def _measure(
    data: ZooData, group: Group, trained: Trained, Y: Tensor, networks: Networks
) -> dict[str, Tensor]:
    """Returns the gaps of models and all measures of them, (B,) each."""
    task = data.task(Y)
    own = {name: measure for name, measure in MEASURES.items() if name != LOSS}
    found = evaluate_measures(own, trained.h, trained.initial, task)
    with torch.no_grad():
        snapshot = take_snapshot(trained.h, task)
    found[CHANCE] = torch.rand(len(Y), generator=stream(0, CHANCE, data.name, group.name))
    found[GAP] = expected_gap(group, snapshot, task.Y_te, data.classes)
    ncs = {OWN[head]: nc for head, nc in networks[data.name].items()}
    like = [own["posterior"] for name, own in networks.items() if name != data.name]
    alike = [nc for nc in like if (nc.shape, nc.outputs) == (data.shape, data.classes)]
    ncs |= {ELSEWHERE: alike[0]} if alike else {}
    # Each point is embedded once, however many models there are.
    tr, te = torch.arange(data.train), torch.arange(data.train, data.train + data.test)
    X_tr, X_te = (indexed(i.expand(len(Y), -1), data) for i in (tr, te))
    shared = Snapshot(X_tr, Y, snapshot.H_tr, X_te, snapshot.H_te)
    found |= {name: judge(nc, shared.to(nc.device)).gap.cpu() for name, nc in ncs.items()}
    if data.name in SMALL:
        found[TABLES] = judge(NeuralComplexity.pretrained("tables"), snapshot).gap
    return found


def _averages(config: Config, scored: dict[str, Scores]) -> list[Row]:
    """Returns means over datasets of what all of them have."""
    rows, of = [], partial(Row.of, NAME, config.seed, dataset=EVERY)
    for measure in next(iter(scored.values())):
        for metric in AVERAGED:
            own = [s[measure][metric] for s in scored.values() if metric in s.get(measure, {})]
            if len(own) == len(scored):
                value = sum(e.value for e in own) / len(own)
                half = math.hypot(*(math.nan if e.ci95 is None else e.ci95 for e in own)) / len(own)
                n = sum(e.n for e in own)
                told = Estimate(value, half if math.isfinite(half) else None, n)
                rows.append(of(metric, told, measure=measure))
    return rows


LEAD = (
    "Networks over a grid of width, depth, batch size, learning rate, weight decay, dropout, "
    "augmentation and label noise, all trained to the same training loss. Labels for test are as "
    "noisy as those for training. Networks of one architecture begin alike, and see the same wrong "
    "labels and the same order of points. Which measure tells, without a test label, which of the "
    "networks generalizes worse? NC is meta-trained on points and on "
    "learners (one layer of 64 units, trained by Adam) that are not in the zoo, with labels of the "
    "same shares of noise; NC for tables has "
    "seen synthetic tables only, and NC of another dataset shows what is left outside of the "
    "domain. Beside them stands what a user has anyway: the training loss, a hold-out of 20 % and "
    "5-fold cross-validation, where the same configuration is trained again."
)
EXPERIMENT = Experiment(
    NAME, "NC among the complexity measures", LEAD, Config, PRESETS, run, tables, figures
)

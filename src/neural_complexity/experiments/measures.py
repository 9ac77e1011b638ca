"""Complexity measures: which of them tell how a network generalizes, and where NC stands."""

import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Annotated, Any

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.baselines.measures.catalogue import MEASURES, evaluate_measures
from neural_complexity.convert.folds import choose_folds
from neural_complexity.experiments.base.config import AtLeast, Count, RunConfig
from neural_complexity.experiments.base.experiment import Experiment, Outcome, Parts
from neural_complexity.experiments.base.measure_report import (
    CHANCE,
    ELSEWHERE,
    EVERY,
    FOLDS,
    GAP,
    HOLD_OUT,
    LEAST,
    LOST,
    MODELS,
    OWN,
    REFITS,
    TABLES,
    TRAINING,
    UNUSED,
    figures,
    tables,
)
from neural_complexity.experiments.base.measure_scores import Scores, averages, score
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
from neural_complexity.meta.executor import ProcessPool
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

Networks = dict[str, dict[str, list[NeuralComplexity]]]  # by dataset, head and meta-training


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
    trainings: Count = 3  # Meta-trainings of each NC, whose luck is in its intervals.
    workers: Annotated[int, AtLeast(0)] = 0
    """Processes that share the work, each with a core; 0 for this one alone, with all cores."""

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
SMOKE |= {"sizes": Sizes(train=80, test=60, others=120)}
SMOKE |= {"iterations": 2, "updates": 2, "trainings": 1}
SMOKE |= {"stopping": Stopping(target=0.5, every=20, steps=200), "learner_steps": 10}
# Preset `cpu` takes hours of a core, most of them to train networks again for 5-fold CV.
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
    if config.workers:
        _work_ahead(config, work, callback)
    data = _load(config)
    networks = {name: _meta_learn(config, own, work, callback) for name, own in data.items()}
    groups, rows, tensors = config.grid.groups(), list[Row](), dict[str, Tensor]()
    steps = (2 + FOLDS_OF_CV) * len(groups) * len(data)
    parts = Parts(work, steps, None if config.workers else callback)
    scored = dict[str, Scores]()
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
        tensors |= {f"{name}/{measure}": _first(values) for measure, values in columns.items()}
        scored[name], more = score(of, columns, hyper)
        rows += more
    rows += averages(partial(Row.of, NAME, config.seed, dataset=EVERY), scored)
    ncs = {
        f"{n}-{h}".replace(" ", "-"): nc
        for n, own in networks.items()
        for h, (nc, *_) in own.items()
    }
    return Outcome(rows, tensors, ncs, {}, {"seconds": _by_kind(parts.seconds)})


def _by_kind(seconds: Mapping[str, float]) -> dict[str, float]:
    """Returns the seconds of all networks, of those without a fold, and of their measures."""
    kinds = dict.fromkeys(("networks", "without fold", "measures"), 0.0)
    for part, spent in seconds.items():
        kind = next((k for k in kinds if part.startswith(k)), "networks")
        kinds[kind] = round(kinds[kind] + spent, 1)
    return kinds


def _load(config: Config) -> dict[str, ZooData]:
    load = partial(load_data, sizes=config.sizes, folder=config.data, seed=config.seed)
    return {name: load(name) for name in config.datasets}


def _first(values: Tensor) -> Tensor:
    """Returns values of a measure, (B,), where there are several meta-trainings of the first."""
    return values if values.ndim == 1 else values[:, 0]


def _work_ahead(config: Config, work: Workspace, callback: ProgressCallback | None) -> None:
    """Lets worker processes do all that the run is made of, which it then finds in its workspace.

    Raises:
        ValueError: If there is no workspace.
    """
    if work.folder is None:
        raise ValueError("workers must be 0 where no folder keeps what they do, got more")
    every = range(len(config.grid.groups()))
    ncs = list(product(config.datasets, HEADS, range(config.trainings)))
    # The last datasets are the largest: long jobs come first.
    groups = list(product(config.datasets[::-1], every))
    start, total = time.perf_counter(), len(ncs) + len(groups)
    with ProcessPool(config.workers) as pool:
        done = 0
        for work_on, jobs in ((_meta_learn_aside, ncs), (_measure_aside, groups)):
            asked = [pool.submit(work_on, config, work, *job) for job in jobs]
            for future in as_completed(asked):
                future.result()
                done += 1
                if callback is not None:
                    callback("evaluation", done, total, time.perf_counter() - start, {})


def _meta_learn_aside(config: Config, work: Workspace, name: str, head: str, training: int) -> None:
    """Meta-trains one NC, in a worker."""
    data = _load(replace(config, datasets=(name,)))[name]
    _meta_learn_one(config, data, head, training, work, None)


def _measure_aside(config: Config, work: Workspace, name: str, group: int) -> None:
    """Does the parts of a group of models, in a worker, once there are all NCs."""
    data = _load(config)
    networks = {own.name: _meta_learn(config, own, work, None) for own in data.values()}
    parts = Parts(work, 1, None)
    _measure_group(config, data[name], config.grid.groups()[group], networks, parts)


def _meta_learn(
    config: Config, data: ZooData, work: Workspace, callback: ProgressCallback | None
) -> dict[str, list[NeuralComplexity]]:
    """Meta-trains both heads several times."""
    learn = partial(_meta_learn_one, config, data, work=work, callback=callback)
    return {head: [learn(head, k) for k in range(config.trainings)] for head in HEADS}


def _meta_learn_one(
    config: Config,
    data: ZooData,
    head: str,
    training: int,
    work: Workspace,
    callback: ProgressCallback | None,
) -> NeuralComplexity:
    """Meta-trains NC on points, and on learners, that the zoo has nothing to do with."""
    X, y = data.others()
    make = partial(image_mlp, data.shape, (64,), data.classes)
    recipe = RECIPE(make=make, steps=config.learner_steps)
    tasks = NoisySplits(**vars(split_tasks(X, y)), shares=config.grid.label_noise)
    often = round(most_updates(len(y), SEEN) / config.iterations)
    updates = max(1, min(config.updates, often))
    # Its own report is not needed: NC is judged by the zoo.
    plan = Plan(iterations=config.iterations, updates=updates, learners=8, chosen_by=8)
    folder = work.path(f"nc {data.name} {head} {training}")
    where: Any = {"folder": folder, "device": config.device, "progress": callback or False}
    seed = stream(config.seed, "meta-training", training).initial_seed() % 2**31
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how good NC is, is a row
        return meta_learn(tasks, recipe, plan, seed=seed, head=head, **where)


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
        others = data.labelled_others(len(Y))
        unused = replace(snapshot, X_te=others[0], H_te=trained.h(others[0]))
    found[CHANCE] = torch.rand(len(Y), generator=stream(0, CHANCE, data.name, group.name))
    found[GAP] = expected_gap(group, snapshot, task.Y_te, data.classes)
    found[UNUSED] = expected_gap(group, unused, others[1], data.classes)
    ncs = {OWN[head]: own for head, own in networks[data.name].items()}
    like = [own["posterior"] for name, own in networks.items() if name != data.name]
    alike = [own for own in like if (own[0].shape, own[0].outputs) == (data.shape, data.classes)]
    ncs |= {ELSEWHERE: alike[0]} if alike else {}
    # Each point is embedded once, however many models there are.
    tr, te = torch.arange(data.train), torch.arange(data.train, data.train + data.test)
    X_tr, X_te = (indexed(i.expand(len(Y), -1), data) for i in (tr, te))
    shared = Snapshot(X_tr, Y, snapshot.H_tr, X_te, snapshot.H_te)
    for name, trainings in ncs.items():
        told = [judge(nc, shared.to(nc.device)).gap.cpu() for nc in trainings]
        found[name] = torch.stack(told, dim=1)  # (B, trainings)
    if data.name in SMALL:
        found[TABLES] = judge(NeuralComplexity.pretrained("tables"), snapshot).gap
    return found


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
    "5-fold cross-validation, where the same configuration is trained again; and, as NC has learned"
    " from them, the labels that no model of the zoo was trained on: its mean loss there. Each "
    "NC is meta-trained several times, and its intervals contain the luck of it."
)
EXPERIMENT = Experiment(
    NAME, "NC among the complexity measures", LEAD, Config, PRESETS, run, tables, figures
)

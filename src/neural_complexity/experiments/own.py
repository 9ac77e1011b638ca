"""Own data: what `meta_learn`, `assess` and the regularizer do for somebody's own dataset."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import ensemble, neighbors
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.convert.arrays_in import columns_of, in_order, predict
from neural_complexity.experiments.base.comparison import SCORES, presets
from neural_complexity.experiments.base.config import AtLeast, BaseConfig, Between, Count
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.plain_loop import BATCH, train_and_predict
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Row, distinct, find, pivot, select, show
from neural_complexity.experiments.base.unseen_digits import RECIPE
from neural_complexity.integrations.sklearn import NCClassifier
from neural_complexity.learners.networks import image_cnn, mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.meta import scores
from neural_complexity.meta.meta_learn import meta_learn
from neural_complexity.meta.meta_run import Plan, seconds
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches, own_digits, split_tasks
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "own"
CLASSES, TRAIN, IMAGE = 10, 1437, (1, 8, 8)
SMALLEST = 50  # training points of a learner
FEWEST_STEPS = 30  # of a network
LEVEL = 0.05  # models with a p-value up to this are said to be shifted
PLAIN, TRANSDUCTIVE, INDUCTIVE = "NCClassifier, no NC", "transductive", "inductive"
LOOP, PENALTY = "a plain loop", "with NCRegularizer"
FAIR, LABELS = "with NCRegularizer, NC of these points alone", "a plain loop, NC's labels as well"
BELIEFS = "NC's own beliefs"
# Ways to train a model, and the baseline of each. NC has learned from more labels than the models
# have: what a plain model does with those stands beside it, and an NC that has only the model's.
METHODS = {PLAIN: None, TRANSDUCTIVE: PLAIN, INDUCTIVE: PLAIN, LOOP: None, PENALTY: LOOP}
METHODS |= {FAIR: LOOP, LABELS: LOOP, BELIEFS: None}
ALL, SHIFT = "all kinds", "distribution shift"
COLUMNS = dict.fromkeys((*SCORES, "true gap"), 3)  # metrics and their digits
COLUMNS |= dict.fromkeys(("inside the bound", "width of the bound", SHIFT), 2)
# Models that NC was not trained on, which were MLPs with one layer of 64: networks, by how they
# are made, and models of scikit-learn, by how they are made of a seed.
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: mlp(64, (), CLASSES),
    "MLP of 16": lambda: mlp(64, (16,), CLASSES),
    "MLP of 512": lambda: mlp(64, (512,), CLASSES),
    "MLP of 64, 64, 64": lambda: mlp(64, (64, 64, 64), CLASSES),
    "tanh MLP": lambda: mlp(64, (100,), CLASSES, activation=nn.Tanh),
    "MLP with dropout": lambda: mlp(64, (256,), CLASSES, noise=lambda _: nn.Dropout(0.5)),
    "CNN": lambda: nn.Sequential(nn.Unflatten(1, IMAGE), image_cnn(IMAGE, (16, 32), CLASSES)),
}
ESTIMATORS: dict[str, Callable[[int], Any]] = {
    "random forest": lambda seed: ensemble.RandomForestClassifier(100, random_state=seed),
    "nearest neighbours": lambda seed: neighbors.KNeighborsClassifier(3 + seed % 15),
    "logistic regression": lambda seed: LogisticRegression(C=10.0 ** (seed % 5 - 2), max_iter=500),
}
KINDS = (*NETWORKS, *ESTIMATORS)
UNUSED, FOLDS = "labelled points that it did not use", "5-fold cross-validation"
ASSESSED = ("predicted", "true", "low", "high", "p", UNUSED, FOLDS)  # of each model

Array = NDArray[Any]
Data = tuple[Array, Array, Array, Array]  # X, y, X_te, y_te


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Scikit-learn's digits as somebody's own data, of which some points never reach NC."""

    budget: str = "5min"  # The time for meta-learning; or, as in "8x20", iterations and updates.
    learner_steps: Count = 300  # Updates of the learners that NC learns from.
    eval_tasks: Annotated[int, AtLeast(2)] = 16  # Learners of each kind that NC is asked about.
    longest: Annotated[int, AtLeast(FEWEST_STEPS)] = 1000  # The most updates that one draws.
    runs: Annotated[int, AtLeast(2)] = 20  # Seeds with and without the regularizer.
    fair_runs: Annotated[int, AtLeast(2)] = 5  # Of these, the most with an NC of their own points.
    fair_budget: str = "20s"  # The time for the meta-learning of each of those NCs.
    sizes: Annotated[tuple[int, ...], Between(SMALLEST, TRAIN)] = (100, 400, 800, TRAIN)
    """Training points of the regularized models."""
    steps: Count = 500  # Updates of the regularized models.

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("budget", "fair_budget"):
            try:
                _budget(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if not self.sizes:
            raise ValueError("sizes must be at least one number, got none")


SMOKE: dict[str, Any] = {"budget": "2x2", "learner_steps": 10, "eval_tasks": 2, "runs": 2}
SMOKE |= {"longest": FEWEST_STEPS, "sizes": (50,), "steps": 5, "fair_runs": 2, "fair_budget": "2x2"}
# The paper has no such experiment.
PRESETS = presets(Config, smoke=SMOKE, cpu={}, paper={"budget": "30min", "eval_tasks": 64})


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    data = own_digits()
    ledger.record("report", *(torch.from_numpy(part)[None] for part in data[2:]))
    where: Any = {"folder": None if work.folder is None else work.folder / "nc"}
    where |= {"seed": config.seed, "progress": callback or False}
    nc = _meta_learn(config, *data[:2], config.budget, **where)
    parts = Parts(work, len(KINDS) + len(config.sizes) * len(METHODS), callback)
    assessed = {kind: parts.do(kind, partial(_assess, config, nc, kind, data)) for kind in KINDS}
    every = {name: torch.cat([told[name] for told in assessed.values()]) for name in ASSESSED}
    rows = []
    for kind, told in {ALL: every, **assessed}.items():
        row = partial(Row.of, NAME, config.seed, model=kind)
        predicted, true, low, high, p, *others = (told[name] for name in ASSESSED)
        rows += [row(m, scores.estimate(score, predicted, true)) for m, score in SCORES.items()]
        inside = (low <= true) & (true <= high)
        means = {"true gap": true, "inside the bound": inside, SHIFT: p <= LEVEL}
        if (high - low).isfinite().all():
            means["width of the bound"] = high - low
        rows += [row(metric, scores.estimate_mean(v.double())) for metric, v in means.items()]
        for name, other in zip((UNUSED, FOLDS), others, strict=True):
            known = ~other.isnan()  # a model may have used all points
            for metric, score in SCORES.items():
                found = scores.estimate(score, other[known], true[known])
                rows.append(row(metric, found, estimated_by=name))
    for size in config.sizes:
        accuracy: dict[str, Tensor] = {}
        for method, baseline in METHODS.items():
            do = partial(_regularize, config, nc, method, size, data)
            accuracy[method] = parts.do(f"{size} points, {method}", do)["accuracy"]
            row = partial(Row.of, NAME, config.seed, method=method, points=size)
            rows.append(row("accuracy", scores.estimate_over_seeds(accuracy[method])))
            if baseline is not None:
                change = accuracy[method] - accuracy[baseline][: len(accuracy[method])]
                rows.append(row("change", scores.estimate_over_seeds(change)))
    tensors = {f"{name}/{kind}": t for kind, told in assessed.items() for name, t in told.items()}
    made = {name: nc.card.to_json()[name] for name in ("plan", "report", "belief_loss", "seconds")}
    made["points"] = int(_known(nc, data[0]).sum())
    spent = {name: round(s, 2) for name, s in parts.seconds.items()}
    return Outcome(rows, tensors, {"digits": nc}, {}, {"made": made, "seconds": spent})


def _meta_learn(config: Config, X: Array, y: Array, budget: str, **where: Any) -> NeuralComplexity:
    recipe = RECIPE(make=partial(mlp, 64, (64,), CLASSES), steps=config.learner_steps)
    options = {"budget": _budget(budget), "device": config.device, **where}
    return meta_learn(split_tasks(X, y), recipe, **options)


def _known(nc: NeuralComplexity, X: Array) -> Array:
    """Which points NC has learned from, (points,)."""
    return nc.card.knows(torch.from_numpy(X).to(nc.x_mean).view(-1, *nc.shape)).cpu().numpy()


def _budget(text: str) -> float | Plan:
    """Reads a time, or a plan such as "8x20", which is the same work everywhere."""
    iterations, _, updates = text.partition("x")
    if iterations.isdigit() and updates.isdigit():
        return Plan(iterations=int(iterations), updates=int(updates), learners=40, chosen_by=8)
    return seconds(text)


def _assess(config: Config, nc: NeuralComplexity, kind: str, data: Data) -> dict[str, Tensor]:
    """Assesses models of a kind, and compares with their true gap."""
    (X, y, X_te, y_te), told = data, []
    for index in range(config.eval_tasks):
        generator = stream(config.seed, "own learners", kind, index)
        share = torch.rand((), generator=generator).item()
        m = round(SMALLEST * (len(X) / SMALLEST) ** share)
        order = torch.randperm(len(X), generator=generator).numpy()
        (X_tr, y_tr), (X_un, y_un) = ((X[rows], y[rows]) for rows in (order[:m], order[m:]))
        ledger.record("train", torch.from_numpy(X_tr)[None], torch.from_numpy(y_tr)[None])
        steps = 0
        if kind in NETWORKS:
            share = torch.rand((), generator=generator).item()
            steps = round(FEWEST_STEPS * (config.longest / FEWEST_STEPS) ** share)
        fit = partial(_fit, kind, index, steps)
        model = fit(X_tr, y_tr, generator)
        found: Any = nc.assess(model, X_tr, y_tr, X_te)  # with a bound: meta_learn calibrates NC
        true = _losses(nc, model, X_te, y_te).mean()
        unused = _losses(nc, model, X_un, y_un).mean() if len(X_un) else math.nan
        folds = []
        for k, (kept, held) in enumerate(KFold(5).split(X_tr)):  # the rows are in random order
            again = fit(X_tr[kept], y_tr[kept], stream(config.seed, "own folds", kind, index, k))
            folds.append(_losses(nc, again, X_tr[held], y_tr[held]))
        gaps = [loss - found.loss_tr for loss in (true, unused, np.concatenate(folds).mean())]
        bound = [found.bound.low, found.bound.high, found.unlike.p_value]
        told.append([found.gap, gaps[0], *bound, *gaps[1:]])
    return dict(zip(ASSESSED, torch.tensor(told, dtype=torch.float64).T, strict=True))


def _fit(kind: str, index: int, steps: int, X: Array, y: Array, generator: torch.Generator) -> Any:
    """Trains a model of a kind."""
    if kind in ESTIMATORS:
        return ESTIMATORS[kind](index).fit(X, y)
    x, labels = torch.from_numpy(X)[None].to(torch.get_default_dtype()), torch.from_numpy(y)[None]
    batches = Minibatches(Task(x, labels, x[:, :1], labels[:, :1]), M=BATCH, N=1, seed=index)
    return RECIPE(make=NETWORKS[kind], steps=steps).train(batches, generator).one(0)


def _losses(nc: NeuralComplexity, model: Any, X: Array, y: Array) -> Array:
    """Returns the loss of a model at labelled points, (points,)."""
    H, columns = predict("X", model, X, labels=True, like=nc.x_mean), columns_of(model)
    H = H if columns is None else in_order("predictions", H, columns, range(CLASSES))
    return cross_entropy(H[None], torch.from_numpy(y).to(H.device)[None])[0].cpu().numpy()


def _regularize(
    config: Config, nc: NeuralComplexity, method: str, size: int, data: Data
) -> dict[str, Tensor]:
    """Trains models that differ by their method alone from those of the same seeds."""
    (X, y, X_te, y_te), accuracies = data, []
    for seed in range(min(config.fair_runs, config.runs) if method == FAIR else config.runs):
        rows = torch.randperm(len(X), generator=stream(seed, "own rows"))[:size].numpy()
        if method == LABELS:
            rows = np.union1d(rows, _known(nc, X).nonzero()[0])
        ledger.record("train", torch.from_numpy(X[rows])[None], torch.from_numpy(y[rows])[None])
        if method == BELIEFS:
            x, x_te = (torch.from_numpy(part)[None].to(nc.x_mean) for part in (X[rows], X_te))
            labels = torch.from_numpy(y[rows])[None].to(nc.device)
            with torch.no_grad():
                guesses = nc.belief(x, labels, x_te).prediction[0].argmax(dim=1).cpu().numpy()
        elif method in (LOOP, PENALTY, FAIR, LABELS):
            used = nc if method == PENALTY else None
            if method == FAIR:  # with a record of its own: it may hold out what taught the other NC
                with ledger.recording(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that so few points teach it little is a row
                    fair: Any = {"budget": config.fair_budget, "seed": seed, "progress": False}
                    used = _meta_learn(config, X[rows], y[rows], **fair)
            with seeded(seed, "own loop"):
                sizes: Any = {"classes": CLASSES, "steps": config.steps, "nc": used}
                guesses = train_and_predict(X[rows], y[rows], X_te, **sizes)
        else:
            used = None if METHODS[method] is None else nc
            model = NCClassifier(used, steps=config.steps, batch=BATCH, random_state=seed)
            model.fit(X[rows], y[rows], X_unlabelled=X_te if method == TRANSDUCTIVE else None)
            guesses = model.predict(X_te)
        accuracies.append(100 * (guesses == y_te).mean())
    return {"accuracy": torch.tensor(accuracies, dtype=torch.float64)}


def tables(rows: list[Row]) -> list[Table]:
    gaps, others = [], []
    for fit in select(rows, "R2", estimated_by=None):
        look_up = partial(find, rows, **fit.keys)
        cells = [show(look_up(m, estimated_by=None), digits) for m, digits in COLUMNS.items()]
        gaps.append((str(fit.keys["model"]), *cells, str(fit.n)))
        by = product((None, UNUSED, FOLDS), ("R2", "MAE"))
        cells = [show(look_up(metric, estimated_by=name), 3) for name, metric in by]
        others.append((str(fit.keys["model"]), *cells))
    sizes = distinct(select(rows, "accuracy"), "points")
    accuracies = [
        line
        for keys in distinct(select(rows, "accuracy"), "method")
        for metric, name in (("accuracy", "{method}"), ("change", "{method}: change"))
        for line in pivot(rows, [keys], [(metric, size) for size in sizes], name.format_map)
        if any(line[1:])
    ]
    found = [
        Table(
            "Predicted against true gap of models of unseen kinds",
            ("model", *COLUMNS, "models"),
            tuple(gaps),
            "Value ± 95 % interval over models. The bound, split-conformal at 95 %, is promised "
            f"for MLPs only. Distribution shift: the share with a p-value of at most {LEVEL:g}.",
        ),
        Table(
            "What else tells the gap of these models",
            ("model", *(f"{by}: {m}" for by in ("NC", "unused", "5-fold") for m in ("R2", "MAE"))),
            tuple(others),
            "Value ± 95 % interval over models. NC has learned from points of the same dataset; "
            "so it stands beside the mean loss at labelled points that the model did not use, and "
            "beside 5-fold cross-validation on the model's own training points, with five refits.",
        ),
        Table(
            "Accuracy of regularized classifiers, %",
            ("classifier", *(f"{size['points']} training points" for size in sizes)),
            tuple(accuracies),
            "Value ± 95 % interval over seeds; the change is that of each seed.",
        ),
    ]
    # Runs of earlier versions have nothing to compare with.
    return found if select(rows, estimated_by=FOLDS) else [found[0], found[2]]


def figures(outcome: Outcome) -> list[Drawing]:
    canvas, axes = sketch(9, 4.2, 1, 2, sharex=True, sharey=True)
    groups = {"networks": list(NETWORKS), "scikit-learn": list(ESTIMATORS)}
    for ax, (title, kinds) in zip(axes, groups.items(), strict=True):
        ax.axline((0, 0), slope=1, color=COLORS["target"], lw=0.8)
        for i, kind in enumerate(kinds):
            names = ("true", "predicted", "low", "high")
            true, predicted, low, high = (outcome.tensors[f"{name}/{kind}"] for name in names)
            color = mpl.colormaps["tab10"](i)
            if low.isfinite().all() and high.isfinite().all():
                bars = [(predicted - low).clamp(min=0), (high - predicted).clamp(min=0)]
                ax.errorbar(true, predicted, bars, fmt="none", ecolor=color, alpha=0.25, lw=0.8)
            ax.plot(true, predicted, "o", ms=3.5, color=color, label=kind)
        ax.set(title=title, xlabel="true gap")
        ax.legend(loc="upper left")
    axes[0].set_ylabel("predicted gap")
    caption = "Each point is a model of a kind new to NC; the bars are the 95 % bounds."
    return [Drawing("own-fit", canvas, "Predicted against true gap", caption)]


LEAD = (
    "Scikit-learn's digits as somebody's own data: 1,437 points that meta_learn and the models may "
    "use, and 360 whose labels neither has seen. NC learns from MLPs with one layer of 64 units. "
    "It then assesses models of kinds that it has never met, trained on 50 to 1,437 points, and "
    "regularizes: scikit-learn style classifiers (NCClassifier), with the unlabelled test inputs "
    "(transductive) and without (inductive), and a loop of one's own, with them (NCRegularizer). "
    "NC knows more labels than those models. To compare: a plain loop with the labels that NC "
    "learned from, NC's own beliefs, and, with fewer seeds and less time, an NC of the same points."
)
EXPERIMENT = Experiment(NAME, "Own data: digits", LEAD, Config, PRESETS, run, tables, figures)

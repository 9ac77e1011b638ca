"""How far NC is off about models of synthetic tables: what its intervals and weights assume."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from scipy.special import ndtr
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.assessment.draws import beliefs
from neural_complexity.assessment.evidence import believe_out_of_fold, compare, refit_out_of_fold
from neural_complexity.assessment.moved import detect_move
from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.assessment.tilt import (
    ASSUMED,
    GRID,
    Assumed,
    Tilt,
    likelihood_of_errors,
    likelihood_of_labels,
)
from neural_complexity.baselines.estimates import LEAST
from neural_complexity.beliefs import tilt_odds
from neural_complexity.experiments.base import table_models as models
from neural_complexity.experiments.base.config import AtLeast, Count, RunConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Row, distinct, pivot, select
from neural_complexity.losses import squared_error, zero_one
from neural_complexity.meta.scores import Estimate, estimate_mean
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.tasks.synthetic_tables import Tables
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "tilts"
LEARNED, SHIPPED = "learned on other tables", "in use"
WAYS = {"NC": 0.0, "NC and 5-fold CV": 1.0}  # by how much labels out of fold count
CV = "5-fold CV"
KINDS = {"as in training": False, "moved": True}  # new rows
TAIL = 0.025  # below, and above, a 95 % interval
STEP = 0.5  # of logarithms of constants, at first
START = ASSUMED[True]  # from which constants are learned
APART = 0.65  # the AUC from which on rows are said to have moved
FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """Models of synthetic tables, none of which is real."""

    targets: Literal["labels", "numbers"] = "labels"  # What tables ask for.
    tables: Annotated[int, AtLeast(4)] = 120  # How many.
    train_rows: tuple[int, int] = (20, 500)  # Of a table: few are as likely as many.
    test_rows: Count = 200  # Of a table.
    moved: float = 0.5  # The share of tables whose test inputs have moved.
    kinds: tuple[str, ...] = tuple(models.MODELS)  # Of models.
    resamples: Count = 6  # Of tables, for intervals.
    evaluations: Count = 150  # Of the likelihood, at most, each time that constants are learned.

    @property
    def labels(self) -> bool:
        """Whether tables ask for labels."""
        return self.targets == "labels"


SMOKE: dict[str, Any] = {"tables": 4, "train_rows": (20, 30), "test_rows": 20, "resamples": 2}
SMOKE |= {"kinds": ("linear", "tree"), "evaluations": 8}
PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": partial(Config, **SMOKE),
    "cpu": Config,
    "gpu": partial(Config, tables=2000, resamples=100),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Measures how far NC is off about each model, and learns what to assume."""
    nc = NeuralComplexity.pretrained("tables" if config.labels else "tables-regression")
    nc.to(config.device)
    parts, found = Parts(work, config.tables, callback), list[dict[str, Tensor]]()
    for i in range(config.tables):
        kept = parts.do(f"table {i}", partial(_measure, config, nc, i))
        if kept:
            found.append(kept | {"table": torch.full((len(kept["truth"]),), len(found))})
    every = {name: torch.cat([one[name] for one in found]) for name in found[0]}
    limit = config.evaluations
    learned = _learn(every, limit)
    draws = [_learn(_some(every, rows), limit) for rows in _resamples(config, len(found))]
    of = partial(Row.of, NAME, config.seed)
    rows = list[Row]()
    for name, value in asdict(learned).items():
        spread = float(np.std([getattr(draw, name) for draw in draws], ddof=1))
        rows.append(of("learned", Estimate(value, 1.96 * spread, len(found)), constant=name))
    # What is learned on one half of the tables is judged on the other.
    tested, halves = dict[str, Tensor](), []
    for half in range(2):
        own, other = (torch.arange(len(found)) % 2 == side for side in (half, 1 - half))
        halves.append((_learn(_some(every, other.nonzero()[:, 0]), limit), own.nonzero()[:, 0]))
    for way, share in WAYS.items():
        for method in (LEARNED, SHIPPED):
            scores = list[dict[str, Tensor]]()
            for assumed, tables in halves:
                some = _some(every, tables)
                given = assumed if method == LEARNED else ASSUMED[config.labels]
                scores.append(_score(some, given, share, labels=config.labels))
            judged = {name: torch.cat([score[name] for score in scores]) for name in scores[0]}
            rows += _rows(judged, partial(of, method=way, constants=method), config.kinds)
            tested |= {f"{way}/{method}/{name}": values for name, values in judged.items()}
    off = {"off": (every["cv"] - every["truth"]).abs(), "table": every["table"]}
    alone = _over_tables(off, "off", torch.ones_like(every["table"], dtype=torch.bool))
    rows.append(of("mean absolute error", alone, method=CV, constants="", rows="all"))
    facts: dict[str, Any] = {"tables": len(found), "models": len(every["truth"])}
    facts |= {"seconds": round(sum(parts.seconds.values()), 1)}
    return Outcome(rows, tested, {}, {}, facts)


def _resamples(config: Config, tables: int) -> Iterator[Tensor]:
    drawing = stream(config.seed, "resamples of tables")
    for _ in range(config.resamples):
        yield torch.randint(tables, (tables,), generator=drawing)


def _some(every: dict[str, Tensor], tables: Tensor) -> dict[str, Tensor]:
    """Returns what is known of the models of some tables, which may come more than once."""
    rows = torch.cat([(every["table"] == table).nonzero()[:, 0] for table in tables.tolist()])
    return {name: values[rows] for name, values in every.items()}


def _measure(config: Config, nc: NeuralComplexity, index: int) -> dict[str, Tensor]:
    """Returns what is known of models of one synthetic table, one after the other, (n, ...).

    These are how likely tilts make targets out of fold, `seen`, and test targets, `new`, (n, G);
    the expected error and the variance of the error at each tilt; what the error is, and what it
    is out of fold. Squared errors are in units of the variance of the training targets.
    """
    family = Tables(
        train_points=config.train_rows, test_points=config.test_rows, moved=config.moved
    )
    family = family if config.labels else replace(family, classes=0)
    task = family.sample(1, stream(config.seed, "table", index))
    X, Y, Z, T = (t[0] for t in (task.X_tr, task.Y_tr, task.X_te, task.Y_te))
    y = Y.numpy().reshape(len(Y))
    if np.bincount(y).min() < 2 if config.labels else y.std() == 0:
        return {}  # a class of one row is in no fold
    ledger.record("learn", X[None], Y[None])
    move = detect_move(X.double().numpy(), Z.double().numpy())
    frames = [pd.DataFrame(part.double().numpy()).rename(columns=str) for part in (X, Z)]
    X, Z, Y, T = X.to(nc.x_mean), Z.to(nc.x_mean), Y.to(nc.device), T.to(nc.device)
    C = int(Y.max()) + 1 if config.labels else None
    at_test, out = list(beliefs(nc, X, Y, Z, classes=C)), believe_out_of_fold(nc, X, Y, classes=C)
    likelihood = likelihood_of_labels if config.labels else likelihood_of_errors
    unit, found = 1.0 if config.labels else float(y.var()), list[dict[str, Tensor]]()
    for kind in config.kinds:
        if models.make_model(kind, labels=config.labels, seed=0) is None:
            continue
        H, H_out = (h.to(nc.x_mean) for h in _fit(kind, frames, y, C, config.seed))
        told, spread, true = _ask(nc, at_test, H, T, unit)
        error, variance = _at_tilts(told, spread, labels=config.labels)
        before, was = compare(nc, out, Y, H_out)
        found.append(
            {
                "seen": likelihood(before, was),
                "new": likelihood(told, true),
                "error": error,
                "variance": variance,
                "truth": true.mean(),
                "cv": was.mean() / unit,
                "kind": torch.tensor(config.kinds.index(kind)),
                "auc": torch.tensor(0.5 if move is None else move.auc, dtype=torch.float64),
                "points": torch.tensor(len(X)),
                "test_points": torch.tensor(len(Z)),
            }
        )
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


def _ask(
    nc: NeuralComplexity, at_test: list[Any], H: Tensor, T: Tensor, unit: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns expected errors of test points, their variances under NC's beliefs, and the truth."""
    loss, parts = zero_one if nc.labels else squared_error, at_test[-1][0] + 1
    told, spread = torch.zeros(2, len(H), dtype=torch.float64)
    for _, some, belief in at_test:
        h = H[None, some]
        told[some] += loss.expected(h, belief)[0].double().cpu() / parts
        spread[some] += loss.variance(h, belief)[0].double().cpu() / parts
    return told / unit, spread / unit**2, loss(H[None], T[None])[0].double().cpu() / unit


def _at_tilts(told: Tensor, spread: Tensor, *, labels: bool) -> tuple[Tensor, Tensor]:
    """Returns the mean error, and its variance, at each tilt, (G,)."""
    if labels:
        p = tilt_odds(told, GRID)  # (N, G)
        return p.mean(dim=0), (p * (1 - p)).sum(dim=0) / len(p) ** 2
    return told.mean() * GRID.exp(), spread.sum() / len(told) ** 2 * (2 * GRID).exp()


def _fit(
    kind: str, frames: list[pd.DataFrame], y: Any, classes: int | None, seed: int
) -> tuple[Tensor, Tensor]:
    """Fits a model; returns logits, or numbers, at test rows and, out of fold, at training rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = models.make_model(kind, labels=classes is not None, seed=seed).fit(frames[0], y)
        every = None if classes is None else list(range(classes))
        out = torch.from_numpy(refit_out_of_fold(model, frames[0], y, FOLDS, classes=every))
        if every is None:
            return torch.from_numpy(np.asarray(model.predict(frames[1]))).view(-1, 1), out
        told = torch.from_numpy(np.asarray(model.predict_proba(frames[1])))
    return told.clamp(min=LEAST).log(), out.clamp(min=LEAST).log()


def _new(found: dict[str, Tensor], assumed: Assumed, share: float) -> Tensor:
    """Returns the probability of tilts at new points, (n, G), after labels that count so much."""
    tilt = Tilt.prior(assumed).after(share * found["seen"])
    return tilt.new(found["points"], found["auc"]).weights


def _likelihood(found: dict[str, Tensor], assumed: Assumed, share: float) -> Tensor:
    """Returns how likely the test labels of each model are, as logarithms, (n,)."""
    return (_new(found, assumed, share).clamp(min=1e-30).log() + found["new"]).logsumexp(dim=1)


def _learn(found: dict[str, Tensor], evaluations: int) -> Assumed:
    """Returns the constants by which test labels are likeliest, with labels out of fold or not."""

    def cost(logarithms: Any) -> float:
        assumed = Assumed(*np.exp(np.clip(logarithms, -6, 3)).tolist())
        each = [_likelihood(found, assumed, share).mean() for share in WAYS.values()]
        return -float(sum(each))

    start = np.log(list(asdict(START).values()))
    # The usual first steps are a part of the start, which may be 0.
    simplex = np.concatenate([start[None], start + STEP * np.eye(len(start))])
    options = {"maxfev": evaluations, "xatol": 0.02, "fatol": 1e-4, "initial_simplex": simplex}
    best = minimize(cost, start, method="Nelder-Mead", options=options).x
    return Assumed(*(round(value, 3) for value in np.exp(np.clip(best, -6, 3)).tolist()))


def _score(
    found: dict[str, Tensor], assumed: Assumed, share: float, *, labels: bool
) -> dict[str, Tensor]:
    """Returns, of each model, whether its error is inside the 95 % interval, and likelihoods."""
    weights, spread = _new(found, assumed, share), found["variance"].clamp(min=1e-12).sqrt()
    off = found["truth"].unsqueeze(1) - found["error"]
    half = 0.5 * labels / found["test_points"].unsqueeze(1)  # of labels, it is a share of rows
    low, high = (
        (weights * torch.from_numpy(ndtr(((off + side * half) / spread).numpy()))).sum(1)
        for side in (-1, 1)
    )
    inside = ((high > TAIL) & (low < 1 - TAIL)).double()
    tilts = Tilt.prior(assumed).after(share * found["seen"]).weights
    if labels:
        told = (tilts * found["error"]).sum(dim=1)
    else:
        told = found["error"][:, len(GRID) // 2] * (tilts @ GRID).exp()
    scores = {"inside": inside, "likelihood": _likelihood(found, assumed, share)}
    scores |= {"off": (told - found["truth"]).abs()}
    return scores | {name: found[name] for name in ("kind", "auc", "table")}


def _rows(own: dict[str, Tensor], row: Callable[..., Row], kinds: tuple[str, ...]) -> Iterator[Row]:
    """Yields means over tables of which models are, all, by kind, and where rows have moved."""
    everything = torch.ones_like(own["inside"], dtype=torch.bool)
    yield row("log-likelihood", _over_tables(own, "likelihood", everything), rows="all")
    yield row("mean absolute error", _over_tables(own, "off", everything), rows="all")
    groups = {"all": everything}
    groups |= {name: (own["auc"] > APART) == moved for name, moved in KINDS.items()}
    groups |= {kind: own["kind"] == i for i, kind in enumerate(kinds)}
    for name, some in groups.items():
        if some.any():
            yield row("coverage", _over_tables(own, "inside", some), rows=name)


def _over_tables(own: dict[str, Tensor], name: str, some: Tensor) -> Estimate:
    tables = own["table"][some]
    each = [own[name][some][tables == table].mean() for table in tables.unique()]
    return estimate_mean(torch.stack(each))


def tables(rows: list[Row]) -> list[Table]:
    """Returns the constants, and how often intervals hold with them."""
    learned = select(rows, "learned")
    lines = pivot(rows, distinct(learned, "constant"), [("learned", {})], "{constant}".format_map)
    found = [Table("Constants, learned on all tables", ("constant", "value"), tuple(lines), LEARNT)]
    header = [f"{way}, {method}" for way in WAYS for method in (LEARNED, SHIPPED)]
    keys = [{"method": way, "constants": method} for way in WAYS for method in (LEARNED, SHIPPED)]
    for metric, note in NOTES.items():
        if not (own := distinct(select(rows, metric), "rows")):
            continue  # rows of an earlier commit
        alone = [{"method": CV, "constants": ""}] if select(rows, metric, method=CV) else []
        lines = pivot(rows, own, [(metric, key) for key in keys + alone], "{rows}".format_map)
        title = f"{metric[0].upper()}{metric[1:]}"
        names = ("models", *header, *(CV for _ in alone))
        found.append(Table(title, names, tuple(lines), note))
    return found


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws how often intervals hold, by kind of model."""
    own = select(outcome.rows, "coverage", constants=LEARNED)
    names = [str(keys["rows"]) for keys in distinct(own, "rows")]
    canvas, ax = sketch(8.0, 3.4)
    for i, way in enumerate(WAYS):
        these = select(own, method=way)
        x = [names.index(str(row.keys["rows"])) + 0.16 * (i - 0.5) for row in these]
        color = COLORS["posterior" if i == 0 else "direct"]
        bars = [row.ci95 or 0.0 for row in these]
        ax.errorbar(x, [row.value for row in these], bars, fmt="o", ms=5, color=color, label=way)
    ax.axhline(1 - 2 * TAIL, color=COLORS["target"], lw=0.8)
    ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
    ax.set(ylabel="share of intervals that hold", ylim=(0.7, 1.02))
    ax.legend(loc="lower right")
    caption = "Of 95 % intervals of the error, with constants that were learned on other tables."
    return [Drawing("coverage", canvas, "How often intervals hold", caption)]


LEARNT = (
    "Those that make test targets likeliest. Value ± 95 % interval of a bootstrap of tables. "
    "`assessment.tilt` says what they are."
)
NOTES = {
    "coverage": "How often the error of a model on test rows is inside the 95 % interval, with "
    "constants that were learned on the other half of the tables, and with those that are in use. "
    "Value ± 95 % interval over tables.",
    "log-likelihood": "Of the test targets of a model; larger is better. Value ± 95 % interval "
    "over tables.",
    "mean absolute error": "Of predicted errors on test rows: the share of rows where a model is "
    "wrong, or its mean squared error over the variance of the training targets.",
}
LEAD = (
    "Models of many kinds are fitted to synthetic tables, in half of which test rows are from "
    "elsewhere. How far is NC off about each of them, and how much do labels out of fold tell "
    "about that? The answer decides how labels and NC are weighted, and how wide intervals are: by "
    "the number of labels, by how far rows have moved, and by how well NC did on the labels."
)
TITLE = "How far NC is off about models of synthetic tables"
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, figures)

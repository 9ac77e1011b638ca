"""Networks on real tables with few labels: NC as a regularizer beside what people do instead."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import table_models as models
from neural_complexity.experiments.base.config import AtLeast, Count, RunConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.plain_loop import train_and_predict
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Row, distinct, pivot, select
from neural_complexity.integrations.sklearn import NCClassifier
from neural_complexity.meta.scores import estimate_mean
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded
from neural_complexity.tasks.real_tables import load_table, table_names
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "few_labels"
PLAIN, LOOP, MLP = "NCClassifier, no NC", "a plain loop", "scikit-learn's MLP"
TRANSDUCTIVE, INDUCTIVE = "NCClassifier, test inputs seen", "NCClassifier, training rows only"
PENALTY, DECAY, STOPPING = "NCRegularizer", "weight decay", "early stopping"
SELF, SPREADING = "self-training", "label spreading"  # both see the test inputs
FOREST, BELIEFS = "a forest", "NC's own beliefs"
# Ways to train, and the network without a regularizer that each is compared with.
METHODS: dict[str, str | None] = {PLAIN: None, TRANSDUCTIVE: PLAIN, INDUCTIVE: PLAIN}
METHODS |= {LOOP: None, PENALTY: LOOP, MLP: None, DECAY: MLP, STOPPING: MLP}
METHODS |= {SELF: MLP, SPREADING: PLAIN, FOREST: PLAIN, BELIEFS: PLAIN}
DECAYS = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)  # the strengths that cross-validation chooses from
FOLDS = 4  # that it has, at most
Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """The NC for tables as a regularizer, on tables that no choice was made by."""

    developed: bool = False  # Tables for development, by which choices are made.
    names: tuple[str, ...] = ()  # Some tables by name; all of a kind if empty.
    sizes: Annotated[tuple[int, ...], AtLeast(10)] = (50, 200, 1000)  # Labelled rows.
    test_rows: Count = 300  # Test rows, at most.
    splits: Count = 1  # Of each table and number of labels.
    steps: Count = 500  # Updates of the loops.
    estimator_steps: Count = 1000  # Updates of NCClassifier; its default.

    def tables(self) -> list[str]:
        """Returns the names of the tables."""
        return list(self.names) or table_names(labels=True, developed=self.developed)


SMOKE: dict[str, Any] = {"names": ("sklearn iris", "sklearn wine"), "sizes": (30,), "steps": 20}
SMOKE |= {"estimator_steps": 30, "test_rows": 30}
PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": partial(Config, **SMOKE),
    "cpu": Config,
    "gpu": partial(Config, splits=10),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains each kind of model on few rows of each table."""
    nc = NeuralComplexity.pretrained("tables").to(config.device)
    names = config.tables()
    splits = [(n, size, i) for size in config.sizes for n in names for i in range(config.splits)]
    parts, found = Parts(work, len(splits), callback), dict[int, dict[str, list[Tensor]]]()
    for name, size, split in splits:
        train = partial(_train, config, nc, name, size, split)
        kept = parts.do(f"{size} labels of {name}, split {split}", train)
        if kept:
            found.setdefault(size, {}).setdefault(name, []).append(kept["accuracy"])
    rows, tensors = list[Row](), dict[str, Tensor]()
    for size, of_tables in found.items():
        # Splits of one table are no independent tables.
        each = torch.stack([torch.stack(own).mean(dim=0) for own in of_tables.values()])
        tensors[f"accuracy/{size}"] = each  # (tables, methods)
        by_method = dict(zip(METHODS, each.unbind(dim=1), strict=True))
        for method, usual in METHODS.items():
            row = partial(Row.of, NAME, config.seed, method=method, labels=size)
            rows.append(row("accuracy", estimate_mean(by_method[method])))
            if usual is not None:
                change = by_method[method] - by_method[usual]
                rows.append(row("change", estimate_mean(change)))
    facts = {"tables": names, "seconds": round(sum(parts.seconds.values()), 1)}
    return Outcome(rows, tensors, {}, {}, facts)


def _train(
    config: Config, nc: NeuralComplexity, name: str, size: int, split: int
) -> dict[str, Tensor]:
    """Returns the accuracy of each method on one split of a table, in percent, (methods,)."""
    seed = config.seed + split
    drawn = models.draw_split(load_table(name), size, config.test_rows, seed=seed)
    if drawn is None:
        return {}
    # All see the same numbers: scaled, one-hot, and nothing missing.
    columns = models.make_model("linear", labels=True, seed=seed)[0].fit(drawn.X_tr)
    X, X_te = (columns.transform(part).astype(np.float32) for part in (drawn.X_tr, drawn.X_te))
    y, y_te = drawn.y_tr, drawn.y_te
    ledger.record("train", torch.from_numpy(X)[None], torch.from_numpy(y)[None])
    ledger.record("report", torch.from_numpy(X_te)[None], torch.from_numpy(y_te)[None])
    guesses = {m: _guess(m, nc, X, y, X_te, replace(config, seed=seed)) for m in METHODS}
    accuracies = [100 * float((guess == y_te).mean()) for guess in guesses.values()]
    return {"accuracy": torch.tensor(accuracies, dtype=torch.float64)}


def _guess(
    method: str, nc: NeuralComplexity, X: Array, y: Array, X_te: Array, config: Config
) -> Array:
    """Returns the labels that a method gives to test inputs, (N,)."""
    classes, seed = int(y.max()) + 1, config.seed
    if method in (PLAIN, TRANSDUCTIVE, INDUCTIVE):
        model = NCClassifier(
            None if method == PLAIN else nc, steps=config.estimator_steps, random_state=seed
        )
        model.fit(X, y, X_unlabelled=X_te if method == TRANSDUCTIVE else None)
        return model.predict(X_te)
    if method in (LOOP, PENALTY):
        used = nc if method == PENALTY else None
        with seeded(seed, "loop"):
            return train_and_predict(X, y, X_te, classes=classes, steps=config.steps, nc=used)
    if method == BELIEFS:
        some = np.random.default_rng(seed).permutation(len(X))[: nc.card.context_size]
        x, x_te = (torch.from_numpy(part)[None].to(nc.x_mean) for part in (X[some], X_te))
        labels = torch.from_numpy(y[some])[None].to(nc.device)
        belief = nc.belief(x, labels, x_te, classes=classes)
        return belief.prediction[0].argmax(dim=1).cpu().numpy()
    estimator: Any = RandomForestClassifier(random_state=seed)
    if method != FOREST:
        estimator = MLPClassifier((64,), max_iter=300, random_state=seed)
    fewest = int(np.bincount(y).min())  # rows of a class
    if method == DECAY:
        folds = max(2, min(FOLDS, fewest))
        estimator = GridSearchCV(estimator, {"alpha": DECAYS}, cv=folds)
    if method == STOPPING and fewest > 1:  # or there is nothing to hold out of some class
        # An epoch of few rows is one update: the usual patience of ten would be nothing.
        patience = {"n_iter_no_change": 50, "max_iter": 1000}
        estimator.set_params(early_stopping=True, validation_fraction=0.2, **patience)
    if method in (SELF, SPREADING):  # rows without a label have -1
        estimator = (
            LabelSpreading("knn") if method == SPREADING else SelfTrainingClassifier(estimator)
        )
        X, y = np.concatenate([X, X_te]), np.concatenate([y, np.full(len(X_te), -1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # that a class has fewer rows than folds
        warnings.simplefilter("ignore", RuntimeWarning)  # that labels do not spread everywhere
        return np.asarray(estimator.fit(X, y).predict(X_te))


def tables(rows: list[Row]) -> list[Table]:
    """Returns accuracies, and changes by what each method adds."""
    found, sizes = [], distinct(select(rows, "accuracy"), "labels")
    counts = [select(rows, "accuracy", **size)[0].n for size in sizes]
    header = [f"{s['labels']} labels ({n} tables)" for s, n in zip(sizes, counts, strict=True)]
    notes = {
        "accuracy": "Value ± 95 % interval over tables.",
        "change": "Against the same network without it (label spreading, a forest and NC's "
        "beliefs: against NCClassifier without an NC). Value ± 95 % interval over tables; above 0 "
        "it helps.",
    }
    for metric, note in notes.items():
        own = distinct(select(rows, metric), "method")
        lines = pivot(rows, own, [(metric, size) for size in sizes], "{method}".format_map)
        title = {"accuracy": "Accuracy, %", "change": "Change of the accuracy, points"}[metric]
        found.append(Table(title, ("method", *header), tuple(lines), note))
    return found


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the changes by each method."""
    own = select(outcome.rows, "change")
    sizes = [s["labels"] for s in distinct(own, "labels")]
    canvas, ax = sketch(8.0, 4.0)
    for i, keys in enumerate(distinct(own, "method")):
        found = select(own, **keys)
        x = [sizes.index(row.keys["labels"]) + 0.08 * (i - 4) for row in found]  # side by side
        ours = "NC" in str(keys["method"])
        ax.errorbar(
            x,
            [row.value for row in found],
            [row.ci95 or 0.0 for row in found],
            fmt="o" if ours else "s",
            ms=5,
            label=str(keys["method"]),
        )
    ax.axhline(0, color=COLORS["target"], lw=0.8)
    ax.set_xticks(range(len(sizes)), [f"{size} labels" for size in sizes])
    ax.set(ylabel="change of the accuracy, points")
    canvas.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    caption = "Against the same network without it, with 95 % intervals over tables."
    return [Drawing("change", canvas, "What regularizers add", caption)]


LEAD = (
    "Networks are trained on few labelled rows of real tables, at the defaults of everything. NC "
    "is the one for tables that ships: it has seen no label but these. With the unlabelled test "
    "inputs NC judges a network where it will be used. Weight decay is chosen by cross-validation "
    "of the same labels; early stopping holds a fifth of them out, and waits for 50 epochs. "
    "Self-training and label spreading are scikit-learn's, and see the test inputs, too."
)
TITLE = "Few labels: NC as a regularizer"
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, figures)

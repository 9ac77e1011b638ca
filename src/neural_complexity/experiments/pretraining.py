"""Pretraining of the NC for any table, and how good its beliefs are on synthetic tables."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.baselines.estimates import LEAST, point_losses
from neural_complexity.experiments.base.config import (
    POSITIVE,
    AtLeast,
    BaseConfig,
    Between,
    Checked,
    Count,
)
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Row, pivot, show
from neural_complexity.experiments.base.training import Part, open_executor
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.meta.optimize import Status
from neural_complexity.meta.parallel import in_parallel
from neural_complexity.meta.pretrain import Pretraining, pretrain
from neural_complexity.meta.scores import estimate_mean
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.synthetic_tables import Tables
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "pretraining"
TREES = 100  # of a forest
METHODS = ("NC's beliefs", "without its network", "forest", "constant")
INPUTS = {"as in training": 0.0, "moved": 1.0}  # where test inputs are
Size = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, kw_only=True)
class Sizes(Checked):
    """The network; see `Architecture`."""

    width: Count = 128  # Of a token.
    heads: Count = 4  # Of attention.
    table_layers: Size = 8  # Layers; without any, beliefs are in closed form.
    extra_rows: Size = 32  # Rows that are learned.


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """An NC for tables; the defaults are for a GPU, and for days."""

    targets: Literal["labels", "numbers"] = "labels"  # What tables ask for.
    network: Sizes = Sizes()  # The network.
    classes: Annotated[int, Between(2, 20)] = 10  # Most classes of labels.
    bins: Count = 64  # Of the histogram that is believed of a number.
    most_rows: Annotated[int, AtLeast(10)] = 1024  # Training rows of a table, at most.
    most_features: Annotated[int, AtLeast(2)] = 60  # Features of a table, at most.
    test_rows: Count = 256  # Test rows of a table.
    moved: Part = 0.4  # The share of tables whose test inputs have moved.
    updates: Count = 200_000  # Of NC.
    tables: Count = 64  # Per update.
    together: Count = 16  # Tables of one size.
    lr: Annotated[float, POSITIVE] = 0.001  # The peak learning rate.
    growth: Part = 0.3  # The part of training in which tables grow to their size.
    checkpoints: Count = 1000  # On the way.
    mixed_precision: bool = False  # Whether NC learns by products of bfloat16.
    devices: Count = 1  # Processes that share an update's tables, with a GPU each if there are.
    workers: Annotated[int, AtLeast(0)] = 0  # Processes of this machine that compute gradients.
    executor: str = ""
    """A cluster in their place: a scheduler of Dask (tcp://host:8786), or Ray (ray://host:10001, or
    ray for the one that it finds)."""
    eval_tasks: Annotated[int, AtLeast(2)] = 1024  # Tables that results are of, of each kind.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.devices > 1 and (self.workers or self.executor):
            raise ValueError(f"devices must be 1 with workers or an executor, got {self.devices}")

    def family(self, moved: float | None = None) -> Tables:
        """Returns the tables."""
        return Tables(
            classes=self.classes if self.targets == "labels" else 0,
            train_points=(10, self.most_rows),
            test_points=self.test_rows,
            features=(2, self.most_features),
            moved=self.moved if moved is None else moved,
        )

    def make(self, **sizes: int) -> NeuralComplexity:
        """Returns the NC before its training, with other sizes if given."""
        kind: dict[str, Any] = {"outputs": self.classes, "loss": cross_entropy.name}
        if self.targets == "numbers":
            kind = {"outputs": 1, "loss": squared_error.name, "bins": self.bins}
        with seeded(self.seed, "weights"):
            own = {"for_tables": True, **asdict(self.network), **sizes}
            return NeuralComplexity(self.most_features, **kind, **own)

    def training(self) -> Pretraining:
        """Returns how it is trained."""
        names = ("updates", "tables", "together", "lr", "growth", "checkpoints", "mixed_precision")
        return Pretraining(**{name: getattr(self, name) for name in names})


SMOKE: dict[str, Any] = {"most_rows": 20, "most_features": 4, "test_rows": 16, "eval_tasks": 4}
SMOKE |= {"updates": 12, "tables": 4, "together": 2, "checkpoints": 3, "classes": 3}
SMOKE |= {"network": Sizes(width=8, heads=2, table_layers=1, extra_rows=2)}
CPU: dict[str, Any] = {"most_rows": 512, "most_features": 60, "test_rows": 128, "eval_tasks": 128}
CPU |= {"together": 4, "network": Sizes(table_layers=0, extra_rows=0)}
# Half an hour of one core.
TRAINED: dict[str, Any] = {**CPU, "updates": 500, "tables": 16, "checkpoints": 50}
TRAINED |= {"network": Sizes(width=64, heads=4, table_layers=3, extra_rows=8)}
PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": partial(Config, **SMOKE),
    "cpu": partial(Config, **CPU),
    "network": partial(Config, **TRAINED),
    "gpu": Config,
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains the NC, and compares its beliefs with a forest's on other tables."""
    nc = config.make().to(config.device)
    own = work.sub("tables", config)
    learns, learn = bool(config.network.table_layers), partial(pretrain, seed=config.seed, work=own)
    given = nc, config.family(), config.training()
    history = list[Status]()
    if learns:
        with open_executor(config.workers, config.executor) as executor:
            here = {"callback": callback, "executor": executor}
            history = in_parallel(config.devices, learn, *given, **here)
    nc.card = replace(nc.card, context_size=config.most_rows)
    parts, rows = Parts(work, len(INPUTS), callback), list[Row]()
    for inputs, moved in INPUTS.items():
        found = parts.do(f"tables, inputs {inputs}", partial(_compare, nc, config, moved))
        for name, losses in found.items():
            metric, method = name.split("/")
            row = Row.of(NAME, config.seed, metric, estimate_mean(losses), method=method)
            rows.append(replace(row, keys={**row.keys, "inputs": inputs}))
    facts = {**parts.facts({}), "parameters": sum(p.numel() for p in nc.parameters())}
    told = {"tables": history} if learns else {}
    return Outcome(rows, {}, {config.targets: nc}, told, facts)


@torch.no_grad()
def _compare(nc: NeuralComplexity, config: Config, moved: float) -> dict[str, Tensor]:
    """Returns losses of beliefs, a forest and a constant on new tables, (tables,), by metric."""
    family, found = config.family(moved), dict[str, list[Tensor]]()
    plain = config.make(table_layers=0).to(config.device)
    judged = (nc, plain) if config.network.table_layers else (nc,)
    for i in range(-(-config.eval_tasks // config.together)):
        generator = stream(config.seed, "tables of the report", int(10 * moved), i)
        task = family.sample(config.together, generator)
        ledger.record_task("report", task)
        on = task.to(config.device)
        beliefs = [
            own.believe(own.encode(on.X_tr, on.Y_tr, on.X_te)).prediction.cpu() for own in judged
        ]
        answers = (*beliefs, _forest(task, config.classes), _constant(nc, task))
        own_methods = METHODS if len(beliefs) > 1 else (METHODS[0], *METHODS[2:])
        for method, H in zip(own_methods, answers, strict=True):
            for metric, losses in _losses(nc, H, task).items():
                found.setdefault(f"{metric}/{method}", []).append(losses)
    return {name: torch.cat(losses)[: config.eval_tasks] for name, losses in found.items()}


def _losses(nc: NeuralComplexity, H: Tensor, task: Task) -> dict[str, Tensor]:
    """Returns mean losses of answers (B, N, C) per table, (B,)."""
    answers = H.softmax(dim=-1) if nc.labels else H
    pairs = zip(answers.double().numpy(), task.Y_te.flatten(1).numpy(), strict=True)
    each = [point_losses(h, y, nc.labels) for h, y in pairs]
    found = {m: torch.tensor([float(one[m].mean()) for one in each]) for m in each[0]}
    if not nc.labels:
        unit = task.Y_tr.var(dim=1, correction=0).squeeze(-1).clamp(min=1e-6)
        return {"squared error": found["squared error"] / unit}
    return {"log loss": found["log loss"], "accuracy": 100 * (1 - found["error"])}


def _constant(nc: NeuralComplexity, task: Task) -> Tensor:
    T = nc.targets(task.Y_tr)  # (B, M, C)
    constant = nc.loss.constant(T.mean(dim=1, keepdim=True), 1 / T.shape[1])
    return constant.expand(-1, task.X_te.shape[1], -1)


def _forest(task: Task, classes: int) -> Tensor:
    """Returns what a forest of each table answers, (B, N, C): logits, or numbers."""
    labels, answers = not task.Y_tr.is_floating_point(), []
    for X_tr, Y_tr, X_te in zip(task.X_tr, task.Y_tr, task.X_te, strict=True):
        kind = RandomForestClassifier if labels else RandomForestRegressor
        forest = kind(TREES, random_state=0).fit(X_tr.numpy(), Y_tr.flatten().numpy())
        if labels:
            p = np.zeros((len(X_te), classes))
            p[:, forest.classes_] = forest.predict_proba(X_te.numpy())
            answers.append(np.log(np.maximum(p, LEAST)))
        else:
            answers.append(forest.predict(X_te.numpy())[:, None])
    return torch.from_numpy(np.stack(answers)).float()


def tables(rows: list[Row]) -> list[Table]:
    """Returns a table of losses for each metric."""
    found = []
    for metric in dict.fromkeys(row.metric for row in rows):
        columns = [(metric, {"inputs": inputs}) for inputs in INPUTS]
        there = {row.keys["method"] for row in rows}
        methods = [{"method": method} for method in METHODS if method in there]
        lines = pivot(rows, methods, columns, lambda k: str(k["method"]), _three)
        title = f"{metric.capitalize()} on {rows[0].n:,} synthetic tables of each kind"
        note = (
            "Value ± 95 % interval over tables that NC has not seen. Test inputs come from where "
            f"training inputs do, or have moved. Forest: {TREES} trees, no other setting changed."
        )
        header = ("method", *(f"inputs {inputs}" for inputs in INPUTS))
        found.append(Table(title, header, tuple(lines), note))
    return found


def _three(row: Row | None) -> str:
    return show(row, 1 if row is not None and row.metric == "accuracy" else 3)


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws how the loss on held-out tables fell, if anything was learned."""
    if not (history := outcome.history.get("tables")):
        return []
    canvas, ax = sketch(5.0, 3.2)
    hours, losses = [s.seconds / 3600 for s in history], [s.held_out for s in history]
    ax.plot(hours, losses, color=COLORS["posterior"])
    ax.set(xlabel="hours of training", ylabel="loss on held-out tables")
    caption = "The mean negative log-likelihood of test targets under NC's beliefs."
    return [Drawing("learning-curve", canvas, "Loss on held-out tables", caption)]


LEAD = (
    "An NC for any table learns from synthetic ones: causal networks, trees, smooth functions and "
    "mixtures, with features of every kind. Kernel regressions predict each row without it, and a "
    "network corrects what they believe together. It learns from the targets of test rows, which "
    "in part of the tables come from elsewhere. Here its beliefs stand beside those of the "
    "regressions alone, and of a forest of the same tables."
)
TITLE = "Pretraining of an NC for tables"
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, figures)

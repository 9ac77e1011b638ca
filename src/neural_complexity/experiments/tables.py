"""Models of real tables: NC's estimates of their loss beside what people do instead."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Literal

import numpy as np
import torch
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.baselines.estimates import ESTIMATES, LEAST
from neural_complexity.experiments.base import table_models as models
from neural_complexity.experiments.base.config import AtLeast, Count, RunConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Row, distinct, pivot, select
from neural_complexity.experiments.base.run_folder import load_network
from neural_complexity.experiments.base.table_evidence import (
    METRICS,
    Effort,
    fit_models,
    metrics_of,
)
from neural_complexity.experiments.base.table_intervals import (
    judge_with_labels,
    score_drawn,
    score_intervals,
)
from neural_complexity.experiments.base.table_scores import Names, score_setting
from neural_complexity.integrations.estimator_nc import EstimatorNC
from neural_complexity.losses import zero_one
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.tasks.real_tables import load_table, table_names
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "tables"
NC = "NC"
SHIPPED = {"labels": "tables", "numbers": "tables-regression"}
FOREST, CONSTANT = "a forest's beliefs", "class frequencies as beliefs"
BELIEFS = (NC, FOREST, CONSTANT)
COMBINED = "NC and 5-fold CV"
METHODS = (*BELIEFS, COMBINED, *ESTIMATES)
MOVED = "moved, all ways"  # each of a table's moves counts like a split of it
EVERY = "all settings"  # of which intervals hold so often; likewise
AVERAGED = {metric for metrics in METRICS.values() for metric in metrics}  # over points
DRAWN = ("drawn", "drawn_truth")  # metrics of labels that are drawn
SHOWN = {
    NC: COLORS["posterior"],
    COMBINED: COLORS["direct"],
    "importance-weighted CV": "C6",
    "bootstrap .632+": "C2",
}
SHOWN |= {"average confidence": "C4", "DoC": "C5"}  # methods in the figure


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """NC and its alternatives on tables that no NC has seen."""

    networks: str = ""  # The folder of a run of `pretraining`; the NC that ships if empty.
    targets: Literal["labels", "numbers"] = "labels"  # What tables ask for.
    developed: bool = False  # Tables for development, by which choices are made.
    further: bool = False  # Further tables of numbers, on which intervals are checked.
    names: tuple[str, ...] = ()  # Some tables by name; all of a kind if empty.
    sizes: Annotated[tuple[int, ...], AtLeast(10)] = (20, 40, 100, 200, 500)  # Labelled rows.
    moved_size: Annotated[int, AtLeast(10)] = 150  # Labelled rows where test rows are elsewhere.
    test_rows: Count = 200  # Test rows, at most.
    splits: Count = 2  # Of each table and setting.
    repetitions: Count = 5  # Of cross-validation, where it is repeated.
    samples: Count = 20  # Of the bootstrap.
    kinds: tuple[str, ...] = tuple(models.MODELS)  # Of models.
    belief: str = ""  # A further belief in labels: a classifier, "package.module:Name".

    def __post_init__(self) -> None:
        super().__post_init__()
        if odd := sorted(set(self.kinds) - set(models.MODELS)):
            raise ValueError(f"kinds must be of {', '.join(models.MODELS)}, got {', '.join(odd)}")
        if self.further and self.targets != "numbers":
            raise ValueError(f"further must be off but for numbers, got {self.targets}")
        if self.belief and (self.belief.count(":") != 1 or self.targets != "labels"):
            wanted = "a classifier, package.module:Name, where targets are labels"
            raise ValueError(f"belief must be {wanted}, got {self.belief}")

    def beliefs(self) -> tuple[str, ...]:
        """Returns the names of all beliefs."""
        return (*BELIEFS, COMBINED, *([self.belief.split(":")[1]] if self.belief else []))

    def settings(self) -> dict[str, tuple[int, str]]:
        """Returns labelled rows and move of each setting, by name."""
        same = {f"{size} rows": (size, "") for size in self.sizes}
        return same | {f"moved: {move}": (self.moved_size, move) for move in models.MOVES}

    def tables(self) -> list[str]:
        """Returns the names of the tables."""
        package, labels = "pydataset" if self.further else "", self.targets == "labels"
        every = table_names(labels=labels, developed=self.developed, package=package)
        return list(self.names) or every


SMOKE: dict[str, Any] = {"names": ("sklearn iris", "sklearn wine"), "sizes": (20,), "splits": 1}
SMOKE |= {"kinds": ("linear", "neighbours", "tree")}
SMOKE |= {"moved_size": 40, "test_rows": 30, "repetitions": 1, "samples": 2}
PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": partial(Config, **SMOKE),
    "cpu": partial(Config, splits=1, repetitions=3, samples=10),
    "gpu": partial(Config, splits=10),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Fits models to parts of tables, and estimates their losses on other parts."""
    if config.networks:
        nc = load_network(config.networks, config.targets, "pretraining", config.device)
    else:
        nc = NeuralComplexity.pretrained(SHIPPED[config.targets]).to(config.device)
    settings, names = config.settings(), config.tables()
    splits = [(n, s, i) for n in names for s in settings for i in range(config.splits)]
    parts = Parts(work, 2 * len(splits), callback)
    # Models first: they take long, and do not depend on NC.
    fitted = {
        (n, s, i): parts.do(f"fits of {n}, {s}, split {i}", partial(_fit, config, n, s, i))
        for n, s, i in splits
    }
    kinds = (*settings, MOVED, EVERY)
    found: dict[str, dict[str, list[dict[str, Tensor]]]] = {kind: {} for kind in kinds}
    seconds = dict[str, list[float]]()
    for (n, s, i), kept in fitted.items():
        judged = parts.do(f"judgements of {n}, {s}, split {i}", partial(_judge, config, nc, kept))
        if judged:
            told = torch.cat([judged["estimates"], kept["estimates"]], dim=1)
            one = {"truth": kept["truth"], "estimates": told, "beliefs": judged["beliefs"]}
            one |= {name: judged[name] for name in ("intervals", *DRAWN) if name in judged}
            for setting in (s, *([MOVED] if settings[s][1] else []), EVERY):
                found[setting].setdefault(n, []).append(one)
            for what, took in (("an assessment", judged), ("a fit", kept)):
                seconds.setdefault(what, []).append(float(took["seconds"].nanmean()))
    rows, tensors = list[Row](), dict[str, Tensor]()
    beliefs = config.beliefs()
    metrics, methods = METRICS[config.targets == "labels"], (*beliefs, *ESTIMATES)
    axes = Names(metrics, config.kinds, methods, beliefs)
    for setting, of_tables in found.items():
        # Splits of one table are no independent tables.
        own = [{k: torch.stack([o[k] for o in t]) for k in t[0]} for t in of_tables.values()]
        if own:
            of = partial(Row.of, NAME, config.seed, setting=setting)
            rows += score_intervals(own, of, axes)
            if setting == EVERY:  # losses of many rows and of few are no one thing
                continue
            rows += score_setting(own, of, axes)
            rows += score_drawn(own, of)
            tensors |= {f"{setting}/{k}": torch.cat([one[k] for one in own]) for k in own[0]}
    facts = {"tables": names, "seconds": round(sum(parts.seconds.values()), 1)}
    facts |= {f"mean seconds of {k}": round(float(np.mean(v)), 3) for k, v in seconds.items()}
    return Outcome(rows, tensors, {}, {}, facts)


def _fit(config: Config, name: str, setting: str, split: int) -> dict[str, Tensor]:
    """Returns what is known of models of one split; see `fit_models`."""
    table, (rows, move) = load_table(name), config.settings()[setting]
    seed = config.seed + split
    drawn = models.draw_split(table, rows, config.test_rows, move=move, seed=seed)
    if drawn is None:
        return {}
    effort = Effort(config.kinds, config.repetitions, config.samples)
    return fit_models(table, drawn, effort, seed=seed)


@torch.no_grad()
def _judge(config: Config, nc: NeuralComplexity, kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns what beliefs say of models, (models, beliefs, metrics), and their own losses."""
    if not kept:
        return {}
    H, unit = kept["H_te"], 1.0 if nc.labels else float(kept["Y_tr"].var(correction=0))
    names = config.beliefs()
    told = torch.full((len(H), len(names), len(METRICS[nc.labels])), torch.nan).double()
    good, seconds, beliefs = told[0].clone(), list[float](), {NC: nc}
    judged = (zero_one, nc.loss) if nc.labels else (nc.loss,)
    if nc.labels:
        forest = RandomForestClassifier(min_samples_leaf=2, random_state=0)
        beliefs |= {FOREST: EstimatorNC(forest), CONSTANT: EstimatorNC(DummyClassifier())}
    if config.belief:
        module, name = config.belief.split(":")
        beliefs[name] = EstimatorNC(getattr(import_module(module), name)())
    X_tr, X_te = (kept[name].to(nc.x_mean)[None] for name in ("X_tr", "X_te"))
    Y_tr = kept["Y_tr"][None].to(nc.device)
    Y_tr = Y_tr if nc.labels else Y_tr.unsqueeze(-1).to(nc.x_mean.dtype)
    for j, own in ((names.index(name), own) for name, own in beliefs.items()):
        start = time.perf_counter()
        known = own.belief(X_tr, Y_tr, X_te, classes=H.shape[-1] if nc.labels else None)
        seconds += [time.perf_counter() - start] if own is nc else []
        for i in range(len(H)):
            if not H[i].isnan().any():
                h = _logits(H[i], nc).to(nc.x_mean)[None]
                losses = [loss.expected(h, known).mean() / unit for loss in judged]
                told[i, j] = torch.stack(losses).cpu()
        answers = known.prediction.softmax(dim=-1) if nc.labels else known.prediction
        y = kept["Y_te"].numpy()
        good[j] = metrics_of(answers[0].double().cpu().numpy(), y, labels=nc.labels, unit=unit)
    labelled = judge_with_labels(nc, kept)
    told[:, names.index(COMBINED)] = labelled["combined"] / unit
    found = {"estimates": told, "beliefs": good, "seconds": torch.tensor(seconds)}
    found |= {name: labelled[name] for name in DRAWN if name in labelled}
    return found | {"intervals": labelled["intervals"] / unit}


def _logits(H: Tensor, nc: NeuralComplexity) -> Tensor:
    return H.clamp(min=LEAST).log() if nc.labels else H


NOTES = {
    "error over that of CV": "Mean absolute error of the estimated loss, over that of 5-fold "
    "cross-validation: the median over kinds of models ± half the 95 % interval of a bootstrap of "
    "tables. Below 1 is better than cross-validation.",
    "error over that of CV by kind": "The same for each kind of model: the value ± half the 95 % "
    "interval of a bootstrap of tables.",
    "R2 of the gap": "Of predicted against true gaps, test minus training loss, over tables: the "
    "median over kinds of models ± half the 95 % interval of a bootstrap of tables.",
    "R2 of the gap by kind": "The same for each kind of model.",
    "share better than CV": "On which share of tables and models an estimate is nearer to the "
    "truth than 5-fold cross-validation. Value ± 95 % interval over tables.",
    "rank correlation": "Spearman's correlation of estimated and true losses of the models of one "
    "table. Value ± 95 % interval over tables.",
    "best model chosen": "How often the model of the least estimated loss is the best of a table. "
    "Value ± 95 % interval over tables.",
    "loss of choosing": "How much larger the loss of that model is than that of the best. Value ± "
    "95 % interval over tables.",
    "mean absolute error": "Of estimated losses, all kinds of models. Value ± 95 % interval over "
    "tables.",
    "coverage": "How often the truth is inside a 95 % interval. NC: of targets drawn from its "
    "belief, alone and after labels were seen out of fold; CV: of the normal distribution. Value ± "
    "95 % interval over tables.",
    "coverage by kind": "The same for each kind of model.",
    "width": "Of these intervals.",
    "loss as a model": "Of models, and of beliefs used as one. Value ± 95 % interval over tables.",
    "rank as a model": "Of the losses of these on one table, from 1, the least. Value ± 95 % "
    "interval over tables.",
}


def tables(rows: list[Row]) -> list[Table]:
    """Returns a table per score and metric: methods against settings."""
    found = []
    for score, note in NOTES.items():
        for metric in dict.fromkeys(row.keys["metric"] for row in rows):
            own = select(rows, score, metric=metric)
            if not own:
                continue
            settings = distinct(own, "setting")
            columns = [(score, {**setting, "metric": metric}) for setting in settings]
            named = distinct(own, "method", "kind")  # of a kind, where scores are
            lines = pivot(rows, named, columns, lambda k: ", ".join(map(str, k.values())))
            counts = [select(own, **setting)[0].n for setting in settings]
            titles = (f"{s['setting']} ({n})" for s, n in zip(settings, counts, strict=True))
            title = f"{score[0].upper()}{score[1:]}: {metric}"
            more = " Behind each setting stands the number of tables."
            found.append(Table(title, ("method", *titles), tuple(lines), note + more))
    return found


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the errors over those of cross-validation."""
    own = select(outcome.rows, "error over that of CV")
    metrics = [m for m in dict.fromkeys(row.keys["metric"] for row in own) if m in AVERAGED]
    drawn = SHOWN | {str(r.keys["method"]): "C3" for r in own if r.keys["method"] not in METHODS}
    canvas, axes = sketch(9.0, 3.6, 1, len(metrics), squeeze=False)
    for ax, metric in zip(axes[0], metrics, strict=True):
        settings = [str(s["setting"]) for s in distinct(own, "setting")]
        for i, (method, color) in enumerate(drawn.items()):
            values = {str(r.keys["setting"]): r for r in select(own, metric=metric, method=method)}
            if not (there := [s for s in settings if s in values]):
                continue
            x = [settings.index(s) + 0.12 * (i - 2) for s in there]  # beside each other
            bars = [values[s].ci95 or 0.0 for s in there]
            means = [values[s].value for s in there]
            ax.errorbar(x, means, bars, fmt="o", ms=4, color=color, label=method)
        ax.axhline(1, color=COLORS["target"], lw=0.8)
        ax.set_xticks(range(len(settings)), settings, rotation=40, ha="right")
        ax.set(title=str(metric), ylabel="error over that of CV", ylim=(0, 2.5))
    canvas.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    caption = "The median over kinds of models, with intervals over tables. 1: cross-validation."
    return [Drawing("errors", canvas, "Errors of estimated losses", caption)]


LEAD = (
    "Models of many kinds are fitted to few rows of real tables. How large will their loss be on "
    "other rows, whose labels nobody has? NC answers from the training rows and the test inputs, "
    "without a refit; the others are what people do instead. "
    "Test rows of classes without a training row are left out. Squared errors are in units of the "
    "variance of training targets."
)
TITLE = "Estimated losses on real tables"
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, figures)

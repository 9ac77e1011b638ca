"""Section 4.3: NC on few-shot images, its fit to the gap and its use as a regularizer."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base import few_shot_images as few_shot
from neural_complexity.experiments.base.comparison import NONE, Method, label, oracle
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.held_out_tasks import (
    EmbeddedTasks,
    draw_held_out_tasks,
    train_and_predict,
)
from neural_complexity.experiments.base.plots import scatter_gaps
from neural_complexity.experiments.base.rows import Keys, Row, make_row
from neural_complexity.experiments.base.saved_networks import HEADS
from neural_complexity.experiments.base.table_views import pivot, select, show
from neural_complexity.experiments.base.training import Setup, train_network
from neural_complexity.experiments.base.without_learner import (
    PROTOTYPICAL,
    train_prototypical,
    without_learner,
)
from neural_complexity.learners.trajectory import usable_rows
from neural_complexity.meta import scores
from neural_complexity.meta.scores import Estimate, estimate, estimate_mean, mean_absolute_error
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "omniglot"
LEARNERS = ("MLP", "CNN")  # NC is trained on the first
MODES = {"transductive": "-", "inductive": "--"}  # and their lines
FIT = {"R2": scores.r_squared, "correlation": scores.correlation, "MAE": mean_absolute_error}
PAPERS = ("MLP", "NC direct, transductive")
ENDS = {"unregularized": "none", "regularized": "NC {}, transductive"}  # learners that NC judges

Results = dict[str, dict[str, Tensor]]  # by method and name


@dataclass(frozen=True, kw_only=True)
class Config(few_shot.FewShotConfig):
    """Few-shot images with both heads; the defaults are the paper's."""

    posterior: few_shot.LabelTraining = field(default_factory=few_shot.LabelTraining)
    """NC with our head."""
    direct: few_shot.LabelTraining = field(default_factory=few_shot.LabelTraining)
    """NC with the paper's head."""
    share_images: bool = False
    """Whether the direct head takes over the posterior head's image encoder and, where attention
    goes by distance, its sense of which images are alike, both trained no further."""


PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": lambda: Config(
        **few_shot.SMOKE,
        learner_channels=4,
        posterior=few_shot.posterior(**few_shot.TINY, updates=4),
        direct=few_shot.direct(**few_shot.TINY, updates=4),
        share_images=True,
    ),
    "cpu": lambda: Config(  # half an hour of meta-training on two cores
        eval_tasks=256,
        posterior=few_shot.posterior(iterations=220, tasks=32),
        direct=few_shot.direct(iterations=150, tasks=32, updates=24),
        share_images=True,
    ),
    "paper": lambda: Config(learner_width=500, lr=0.01, steps=2000),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Meta-trains NC with both heads and scores them on characters they have never seen."""
    family = config.train_family()
    shape = family.images.pixels.shape[1:]
    recipe = config.recipe(shape)
    setup = Setup(family=family, recipe=recipe, seed=config.seed, device=config.device)
    networks: dict[str, NeuralComplexity] = {}
    history: dict[str, Any] = {}
    for head in HEADS:
        shared = networks.get("posterior") if config.share_images else None
        own, training = replace(setup, images_from=shared), getattr(config, head)
        networks[head], history[head] = train_network(training, head, own, work, callback)
    held_out = draw_held_out_tasks(config)
    embedded = {"posterior": EmbeddedTasks(networks["posterior"], held_out)}
    like = embedded["posterior"] if config.share_images else None
    embedded["direct"] = EmbeddedTasks(networks["direct"], held_out, like)
    methods = [NONE, *_nc_methods(embedded), oracle(recipe, held_out.task)]
    parts = Parts(work, len(methods) * len(LEARNERS) + 1, callback)
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    for learner in LEARNERS:
        train = partial(train_and_predict, config.recipe(shape, learner), config.seed, embedded)
        results = {}
        for m in methods:
            results[m.name] = parts.do(f"{m.name}, {learner}", partial(train, m.penalty))
        kept = usable_rows(result.pop("diverged").squeeze(0) for result in results.values())
        results = {m: {k: t[:, kept] for k, t in r.items()} for m, r in results.items()}
        row = partial(make_row, NAME, config.seed, learner=learner)
        rows += [*_learner_rows(row, learner, methods, results), *_fit_rows(row, results)]
        rows.append(row("diverged tasks", scores.count(~kept)))
        tensors |= {f"{learner}/{m}/{k}": t for m, r in results.items() for k, t in r.items()}
    train = partial(train_prototypical, config, config.posterior, family, callback)
    encoder = parts.do(PROTOTYPICAL, train)
    tensors |= {f"{PROTOTYPICAL}/{k}": t for k, t in encoder.items()}
    for (name, mode), right in without_learner(config, embedded["posterior"], encoder).items():
        accuracy = estimate_mean(100 * right)
        rows.append(make_row(NAME, config.seed, "accuracy", accuracy, method=name, mode=mode))
    facts = {"seconds": {name: round(s, 1) for name, s in parts.seconds.items()}}
    return Outcome(rows, tensors, networks, history, facts)


def _nc_methods(embedded: dict[str, EmbeddedTasks]) -> Iterator[Method]:
    for (head, tasks), mode in itertools.product(embedded.items(), MODES):
        penalty = partial(tasks.penalty, inductive=mode == "inductive")
        yield Method({"method": "NC", "head": head, "mode": mode}, penalty)


def _learner_rows(
    row: Callable[..., Row], learner: str, methods: list[Method], results: Results
) -> list[Row]:
    """Scores learners after their last step."""
    rows = []
    none, best = (results[name]["loss_te"][-1] for name in ("none", "oracle"))
    for method in methods:
        add, result = partial(row, **method.keys), results[method.name]
        paper = few_shot.PAPER_ACCURACY if (learner, method.name) == PAPERS else None
        rows.append(add("accuracy", estimate_mean(100 * result["accuracy"][-1]), paper))
        rows.append(add("test loss", estimate_mean(result["loss_te"][-1])))
        rows.append(add("train loss", estimate_mean(result["loss_tr"][-1])))
        if method.keys["method"] == "NC":
            share = estimate(scores.share_of_oracle, none, result["loss_te"][-1], best)
            rows.append(add("share of oracle", share))
    return rows


def _fit_rows(row: Callable[..., Row], results: Results) -> list[Row]:
    """Scores predicted gaps and accuracies."""
    rows = []
    for head in HEADS:
        both = [results[name.format(head)] for name in ENDS.values()]
        pairs = [(result[f"predicted/{head}"], result["gap"]) for result in both]
        add = partial(row, method="NC", head=head)
        for end, (predicted, true) in zip(ENDS, pairs, strict=True):
            for metric, score in FIT.items():
                value = estimate(score, predicted[-1], true[-1])
                rows.append(add(metric, value, evaluated_on=end))
        every = [
            torch.cat([t.flatten().double() for t in sets]) for sets in zip(*pairs, strict=True)
        ]
        for metric, score in FIT.items():
            # A task's steps are not independent, so there is no interval.
            value = Estimate(score(*every).item(), None, pairs[0][1].shape[1])
            rows.append(add(metric, value, evaluated_on="both, all the way"))
    for end, name in ENDS.items():
        result = results[name.format("posterior")]
        predicted, true = (100 * result[n][-1] for n in ("predicted accuracy", "accuracy"))
        add = partial(row, method="NC", head="posterior", evaluated_on=end)
        rows.append(add("predicted accuracy", estimate_mean(predicted)))
        rows.append(add("accuracy", estimate_mean(true)))
        rows.append(add("accuracy MAE", estimate(mean_absolute_error, predicted, true)))
    return rows


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of learners, of methods without one, and of NC's predictions."""
    return [
        *(_learner_table(select(rows, learner=learner), learner) for learner in LEARNERS),
        _without_learner_table(select(rows, learner=None)),
        *(_fit_table(select(rows, learner=learner), learner) for learner in LEARNERS),
        _accuracy_table(rows),
    ]


def _lines(
    rows: list[Row], first: str, metrics: Iterable[str], name: Callable[[Keys], str], digits: int
) -> tuple[tuple[str, ...], ...]:
    """Returns a line for each row of the metric `first`."""
    columns: list[tuple[str, Keys]] = [(metric, {}) for metric in metrics]
    lines = [row.keys for row in select(rows, first)]
    return tuple(pivot(rows, lines, columns, name, partial(show, digits=digits)))


def _learner_table(rows: list[Row], learner: str) -> Table:
    own = select(rows, evaluated_on=None)
    metrics = ("test loss", "train loss", "share of oracle")
    accuracies = select(own, "accuracy")
    lines = _lines(own, "accuracy", metrics, label, 3)
    (diverged,) = select(own, "diverged tasks")
    unseen = "" if learner == "MLP" else " NC was trained on MLP learners only."
    return Table(
        f"{learner} learners after their last step, {accuracies[0].n:,} held-out tasks",
        ("regularizer", "paper's accuracy", "accuracy", *metrics),
        tuple(
            (name, f"{row.paper:.2f}" if row.paper else "", show(row), *cells)
            for row, (name, *cells) in zip(accuracies, lines, strict=True)
        ),
        "Value ± 95 % interval over tasks; accuracies in %. Share of oracle: of its improvement of "
        f"the test loss. Tasks left out because a learner diverged: {diverged.value:.0f}.{unseen}",
    )


def _without_learner_table(rows: list[Row]) -> Table:
    return Table(
        f"Accuracy in % without a learner, {rows[0].n:,} held-out tasks",
        ("method", "accuracy"),
        tuple((label(row.keys), show(row)) for row in rows),
        "Value ± 95 % interval over tasks. Transductive: all unlabelled test images of a task are "
        "looked at together; inductive: each by itself. Beliefs: the label that NC with the "
        "posterior head thinks likeliest. The prototypical network has an image encoder of the "
        "same kind, trained on the same tasks as many times; soft k-means moves its means to the "
        "test images that choose them, three times, as NC does, but only here and not in training.",
    )


def _fit_table(rows: list[Row], learner: str) -> Table:
    n = select(rows, "R2")[0].n
    return Table(
        f"Predicted against true gap of {learner} learners, {n:,} held-out tasks",
        ("gap predictor; learners", *FIT),
        _lines(rows, "R2", FIT, lambda keys: f"{label(keys)}; {keys['evaluated_on']}", 3),
        "Value ± 95 % interval over tasks. Learners without NC (unregularized) and with this very "
        "NC (regularized, transductive) after their last step; and both before the first step and "
        "after 1, 2, 4, ... steps, too, which is easier (untrained learners have no gap); "
        "there the steps of a task depend on each other, and there is no "
        "interval. R2 is the coefficient of determination.",
    )


def _accuracy_table(rows: list[Row]) -> Table:
    metrics = ("predicted accuracy", "accuracy", "accuracy MAE")
    n = select(rows, metrics[0])[0].n
    return Table(
        f"Accuracy in % that NC's beliefs predict, {n:,} held-out tasks",
        ("learners", "predicted", "true", "MAE"),
        _lines(rows, metrics[0], metrics, "{learner}, {evaluated_on}".format_map, 2),
        "Value ± 95 % interval over tasks. The posterior head believes something about each test "
        "label, and so about how many of a learner's answers are right; MAE over tasks.",
    )


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws accuracies, and predicted against true gaps and accuracies."""
    return [
        Drawing(
            "accuracy",
            _curves(outcome),
            "Accuracy by learner step",
            "Mean over held-out tasks; the bands are 95 % intervals of the mean. Dashed: NC "
            "judges on other unlabelled images than the test images (inductive).",
        ),
        Drawing(
            "gap-fit",
            _fit(outcome.tensors, HEADS, "gap"),
            "Predicted against true gap",
            "One dot per held-out task, after the learner's last step; the outermost 1 % of "
            "values are cut off. Regularized: by the NC that predicts.",
        ),
        Drawing(
            "accuracy-fit",
            _fit(outcome.tensors, HEADS[:1], "accuracy"),
            "Predicted against true accuracy",
            "One dot per held-out task, after the learner's last step: the accuracy that the "
            "posterior head's beliefs about the test labels predict. True accuracies take few "
            "values: dots are moved sideways a little, at random.",
        ),
    ]


def _curves(outcome: Outcome) -> Canvas:
    canvas = Canvas(figsize=(8.6, 3.5), layout="constrained")
    axes = canvas.subplots(1, len(LEARNERS), sharey=True)
    for ax, learner in zip(axes, LEARNERS, strict=True):
        for row in select(outcome.rows, "test loss", learner=learner):
            values = 100 * outcome.tensors[f"{learner}/{label(row.keys)}/accuracy"]  # (steps, B)
            mean, steps = values.mean(dim=1).numpy(), range(len(values))
            color = COLORS[str(row.keys.get("head", row.keys["method"]))]
            line = MODES.get(str(row.keys.get("mode")), "-")
            ax.plot(steps, mean, line, color=color, label=label(row.keys))
            half = 1.96 * values.std(dim=1).numpy() / values.shape[1] ** 0.5
            ax.fill_between(steps, mean - half, mean + half, color=color, alpha=0.12, lw=0)
        ax.set(title=f"{learner} learners", xlabel="learner steps", ylim=(0, 100))
    axes[0].axhline(
        few_shot.PAPER_ACCURACY, color=COLORS["target"], lw=0.8, ls=":", label="the paper's NC"
    )
    axes[0].set_ylabel("accuracy in %")
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return canvas


def _fit(tensors: dict[str, Tensor], heads: Sequence[str], what: str) -> Canvas:
    """Draws predicted against true gaps or accuracies, a line of panels for each head."""
    columns = list(itertools.product(LEARNERS, ENDS))
    canvas = Canvas(figsize=(10.4, 0.4 + 2.6 * len(heads)), layout="constrained")
    axes = canvas.subplots(len(heads), len(columns), squeeze=False)
    random, unit = np.random.default_rng(0), " in %" if what == "accuracy" else ""
    for line, head in zip(axes, heads, strict=True):
        names = {"gap": f"predicted/{head}", "accuracy": "predicted accuracy"}
        for ax, (learner, end) in zip(line, columns, strict=True):
            found = f"{learner}/{ENDS[end].format(head)}"
            true, predicted = (tensors[f"{found}/{name}"][-1] for name in (what, names[what]))
            score = ""
            if unit:  # accuracies take few values: dots are moved a little
                true, predicted = 100 * true, 100 * predicted
                score = f"MAE = {mean_absolute_error(predicted, true).item():.1f}"
                true = true + torch.from_numpy(random.uniform(-0.6, 0.6, len(true)))
            r2 = scatter_gaps(ax, true, predicted, COLORS[head], cut=0.005)
            ax.lines[0].set(markersize=5, alpha=0.4)  # they are few
            ax.set_title(f"{learner}, {end}\n{score or r2}")
            ax.set(xlabel=f"true {what}{unit}", ylabel="")
            ax.locator_params(nbins=4)
        line[0].set_ylabel(f"{head} head\n\npredicted {what}{unit}")
    return canvas


EXPERIMENT = Experiment(
    name=NAME,
    title="Few-shot images (Omniglot)",
    lead=(
        "A task is to tell some handwritten characters apart from few images of each (the paper: "
        "ten characters, one image of each). NC is meta-trained on learners with one hidden layer "
        "(MLP), on Omniglot's background characters and their rotations; here it meets the "
        "evaluation characters, from alphabets that it has never seen, and also convolutional "
        "learners (CNN), of which it has never seen any. A learner regularized by NC descends its "
        "training loss plus the gap that NC predicts. Transductive: NC judges the learner on the "
        "unlabelled test images themselves, as in the paper; inductive: on other unlabelled images "
        "of the same characters. The oracle descends the test loss itself. The direct head, which "
        "is the paper's, takes over image encoder and attention of the posterior head, which was "
        "trained first and also on the labels; it was trained no further in these, and knows ten "
        "classes only. All test sets hold equally many images of each character, which helps "
        "methods that see them together."
    ),
    config=Config,
    presets=PRESETS,
    run=run,
    tables=tables,
    figures=figures,
)

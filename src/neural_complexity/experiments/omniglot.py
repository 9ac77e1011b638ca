"""Section 4.3: NC on few-shot images, its fit to the gap and its use as a regularizer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison
from neural_complexity.experiments.base import few_shot_images as few_shot
from neural_complexity.experiments.base.comparison import NONE, SCORES, Method, Results, label
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.plots import scatter_gaps, sketch
from neural_complexity.experiments.base.rows import Row, pivot, select, show
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.experiments.base.training import Setup, train_network
from neural_complexity.meta import scores
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "omniglot"
LEARNERS = ("MLP", "CNN")  # NC is trained on the first
MODES = {"transductive": "-", "inductive": "--"}  # and their lines
PAPERS = ("MLP", "NC direct, transductive")
ENDS = {"unregularized": "none", "regularized": "NC {}, transductive"}  # learners that NC judges
INTERVAL = "Value ± 95 % interval over tasks"
LEARNERS_NOTE = (
    f"{INTERVAL}; accuracies in %. Share of oracle: of its improvement of the test loss. "
    "Tasks left out because a learner diverged: {:.0f}."
)
FIT_NOTE = (
    f"{INTERVAL}. Learners after their last step, without NC (unregularized) and with it; or both "
    "on the way, too, which is easier (no gap at first). R2 is the coefficient of determination."
)


@dataclass(frozen=True, kw_only=True)
class Config(few_shot.FewShotConfig):
    """Few-shot images with both heads; the defaults are the paper's."""

    posterior: few_shot.LabelTraining = few_shot.PAPERS  # NC with our head.
    direct: few_shot.LabelTraining = few_shot.PAPERS  # NC with the paper's head.
    share_images: bool = False  # Whether the direct head takes over the other's sense of images.
    # Whether our head is the shipped NC, and no prototypical network is trained beside it.
    shipped: bool = False


TINY, SMOKE = few_shot.TINY, few_shot.SMOKE | {"learner_channels": 4, "share_images": True}
SMOKE |= {"posterior": few_shot.posterior(**TINY), "direct": few_shot.direct(**TINY)}
CPU: Any = {"posterior": few_shot.posterior(iterations=220, tasks=32), "share_images": True}
CPU |= {"direct": few_shot.direct(iterations=150, tasks=32, updates=24), "eval_tasks": 256}
# The direct head learns to see by itself: which images are alike is learned from gaps through the
# votes that it sees. Soft k-means comes later: on what NC does not know yet it leads astray.
ALONE: Any = {"vote": True, "rounds": 0, "later_rounds": 3, "self_layers": 0, "lr": 0.001}
ALONE |= {"made_up": 0.75}
ALONE |= {"iterations": 100, "updates": 50, "tasks": 16, "batch": 96, "run": 12}
# On two cores, `cpu` takes half an hour of meta-training.
PRESETS = comparison.presets(Config, smoke=SMOKE, cpu=CPU, paper=few_shot.PAPERS_LEARNERS)
BY_ITSELF = CPU | {"direct": few_shot.direct(**ALONE), "share_images": False}
BY_ITSELF["shipped"] = True
PRESETS["by-itself"] = partial(Config, **BY_ITSELF)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    family, tasks = config.train_family(), few_shot.draw_held_out_tasks(config)
    recipes = {kind: config.recipe(family.images.pixels.shape[1:], kind) for kind in LEARNERS}
    setup = Setup(family=family, recipe=recipes["MLP"], seed=config.seed, device=config.device)
    embedded: dict[str, few_shot.EmbeddedTasks] = {}
    history: dict[str, Any] = {}
    methods = [NONE]
    for head in HEADS:
        like = embedded.get("posterior") if config.share_images else None
        own = setup if like is None else replace(setup, images_from=like.nc)
        training = getattr(config, head)
        if head == "posterior" and config.shipped:
            nc = NeuralComplexity.pretrained("omniglot").to(config.device)
        else:
            nc, history[head] = train_network(training, head, own, work, callback)
        nc = few_shot.add_rounds(nc, training.later_rounds) if training.later_rounds else nc
        embedded[head] = few_shot.EmbeddedTasks(nc, tasks, like)
        for mode in MODES:
            penalty = partial(embedded[head].penalty, inductive=mode == "inductive")
            methods.append(Method({"method": "NC", "head": head, "mode": mode}, penalty))
    methods.append(comparison.oracle(setup.recipe, tasks[0]))
    parts = Parts(work, len(methods) * len(LEARNERS) + 1, callback)
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    for learner, recipe in recipes.items():
        train = partial(few_shot.train_and_predict, recipe, config.seed, embedded)
        do = [(m, partial(train, m.penalty)) for m in methods]
        whole = [(m.keys, parts.do(f"{m.name}, {learner}", part)) for m, part in do]
        kept = comparison.kept_tasks(result for _, result in whole)
        results = [(keys, {k: t[:, kept] for k, t in result.items()}) for keys, result in whole]
        row = partial(Row.of, NAME, config.seed, learner=learner)
        rows += _rows(row, learner, results)
        rows.append(row("diverged tasks", scores.count(~kept)))
        for keys, result in results:
            name = f"{learner}/{label(keys)}"
            tensors |= {f"{name}/{k}": t for k, t in result.items() if k != "diverged"}
    train = partial(config.train_prototypical, config.posterior, family, callback)
    state = {} if config.shipped else parts.do(few_shot.PROTOTYPICAL, train)
    tensors |= {f"{few_shot.PROTOTYPICAL}/{k}": t for k, t in state.items()}
    found = few_shot.without_learner(config, embedded["posterior"], state)
    for (method, mode), right in found.items():
        accuracy = scores.estimate_mean(100 * right)
        rows.append(Row.of(NAME, config.seed, "accuracy", accuracy, method=method, mode=mode))
    networks = {head: own.nc for head, own in embedded.items()}
    facts = {"seconds": parts.facts({})["seconds"]}
    return Outcome(rows, tensors, networks, history, facts)


def _rows(row: Callable[..., Row], learner: str, results: Results) -> list[Row]:
    """Scores learners after their last step, and predicted gaps and accuracies."""
    rows, accuracies, by_name = [], [], {label(keys): result for keys, result in results}
    for keys, own in results:
        add = partial(row, **keys)
        paper = few_shot.PAPER_ACCURACY if (learner, label(keys)) == PAPERS else None
        rows.append(add("accuracy", scores.estimate_mean(100 * own["accuracy"][-1]), paper))
        rows += comparison.loss_rows(add, results, own, -1)
    for head in HEADS:
        both = {end: by_name[name.format(head)] for end, name in ENDS.items()}
        pairs = [(result[f"predicted/{head}"], result["gap"]) for result in both.values()]
        every = [torch.cat([t.flatten().double() for t in s]) for s in zip(*pairs, strict=True)]
        add = partial(row, method="NC", head=head)
        for end, (p, true) in zip(both, pairs, strict=True):
            for metric, score in SCORES.items():
                rows.append(add(metric, scores.estimate(score, p[-1], true[-1]), evaluated_on=end))
        for metric, score in SCORES.items():  # a task's steps are not independent: no interval
            value = scores.Estimate(score(*every).item(), None, pairs[0][1].shape[1])
            rows.append(add(metric, value, evaluated_on="both, all the way"))
        for end, result in both.items() if head == "posterior" else ():
            known = {name: 100 * result[name][-1] for name in ("predicted accuracy", "accuracy")}
            told = {name: scores.estimate_mean(values) for name, values in known.items()}
            told["accuracy MAE"] = scores.estimate(scores.mean_absolute_error, *known.values())
            accuracies += [add(metric, value, evaluated_on=end) for metric, value in told.items()]
    return rows + accuracies


def tables(rows: list[Row]) -> list[Table]:
    learners, fits, three = [], [], partial(show, digits=3)
    metrics = ("test loss", "train loss", "share of oracle")
    for learner in LEARNERS:
        every = select(rows, learner=learner)
        own = select(every, evaluated_on=None)
        found, (diverged,) = select(own, "accuracy"), select(own, "diverged tasks")
        title = f"{learner} learners after their last step, {found[0].n:,} held-out tasks"
        header = ("regularizer", "paper's accuracy", "accuracy", *metrics)
        cells = pivot(own, [r.keys for r in found], metrics, label, three)
        both = zip(found, cells, strict=True)
        lines = ((n, f"{r.paper:.2f}" if r.paper else "", show(r), *c) for r, (n, *c) in both)
        learners.append(Table(title, header, tuple(lines), LEARNERS_NOTE.format(diverged.value)))
        title = f"Predicted against true gap of {learner} learners, {found[0].n:,} held-out tasks"
        kinds = [r.keys for r in select(every, "R2")]
        fit = pivot(every, kinds, SCORES, lambda k: f"{label(k)}; {k['evaluated_on']}", three)
        fits.append(Table(title, ("gap predictor; learners", *SCORES), tuple(fit), FIT_NOTE))
    alone, told = select(rows, learner=None), ("predicted accuracy", "accuracy", "accuracy MAE")
    predicted = select(rows, told[0])
    kinds = [r.keys for r in predicted]
    without = Table(
        f"Accuracy in % without a learner, {alone[0].n:,} held-out tasks",
        ("method", "accuracy"),
        tuple((label(row.keys), show(row)) for row in alone),
        f"{INTERVAL}. Transductive: a task's unlabelled test images are looked at together; "
        "inductive: each alone. Beliefs: the label that NC thinks likeliest. The prototypical "
        "network has the same kind of encoder, trained on the same tasks; soft k-means moves its "
        "means to the test images that choose them, as in NC, but not in training.",
    )
    accuracies = Table(
        f"Accuracy in % that NC's beliefs predict, {predicted[0].n:,} held-out tasks",
        ("learners", "predicted", "true", "MAE"),
        tuple(pivot(rows, kinds, told, "{learner}, {evaluated_on}".format_map)),
        f"{INTERVAL}. Beliefs about test labels say how many of a learner's answers are right.",
    )
    return [*learners, without, *fits, accuracies]


def figures(outcome: Outcome) -> list[Drawing]:
    canvas, axes = sketch(8.6, 3.5, 1, len(LEARNERS), sharey=True)
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
    look: dict[str, Any] = {"color": COLORS["target"], "lw": 0.8, "ls": ":"}
    axes[0].axhline(few_shot.PAPER_ACCURACY, label="the paper's NC", **look)
    axes[0].set_ylabel("accuracy in %")
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    curves = "Mean over held-out tasks, with 95 % intervals. Dashed: inductive."
    gaps = "A dot is a held-out task after the learner's last step; the outermost 1 % are cut off."
    accuracies = "As above, for beliefs of the posterior head; dots are moved sideways, at random."
    return [
        Drawing("accuracy", canvas, "Accuracy by learner step", curves),
        _fit(outcome.tensors, HEADS, "gap", gaps),
        _fit(outcome.tensors, HEADS[:1], "accuracy", accuracies),
    ]


def _fit(tensors: dict[str, Tensor], heads: Sequence[str], what: str, caption: str) -> Drawing:
    """Draws predicted against true gaps or accuracies, a line of panels for each head."""
    columns = list(product(LEARNERS, ENDS))
    height, grid = 0.4 + 2.6 * len(heads), (len(heads), len(columns))
    canvas, axes = sketch(10.4, height, *grid, squeeze=False)
    random, unit = np.random.default_rng(0), " in %" if what == "accuracy" else ""
    for line, head in zip(axes, heads, strict=True):
        names = (what, "predicted accuracy" if unit else f"predicted/{head}")
        for ax, (learner, end) in zip(line, columns, strict=True):
            found = f"{learner}/{ENDS[end].format(head)}"
            true, predicted = (tensors[f"{found}/{name}"][-1] for name in names)
            score = ""
            if unit:  # accuracies take few values: dots are moved a little
                true, predicted = 100 * true, 100 * predicted
                score = f"MAE = {scores.mean_absolute_error(predicted, true).item():.1f}"
                true = true + torch.from_numpy(random.uniform(-0.6, 0.6, len(true)))
            r2 = scatter_gaps(ax, true, predicted, COLORS[head], cut=0.005)
            ax.lines[0].set(markersize=5, alpha=0.4)  # they are few
            ax.set(title=f"{learner}, {end}\n{score or r2}", xlabel=f"true {what}{unit}", ylabel="")
            ax.locator_params(nbins=4)
        line[0].set_ylabel(f"{head} head\n\npredicted {what}{unit}")
    return Drawing(f"{what}-fit", canvas, f"Predicted against true {what}", caption)


LEAD = (
    "Characters are told apart from few images of each (the paper: one of each of ten). NC is "
    "meta-trained on learners with one hidden layer (MLP) and background characters; here it meets "
    "characters of alphabets that it has never seen, and convolutional learners (CNN). Regularized "
    "learners descend their training loss plus the gap that NC predicts on the unlabelled test "
    "images, as in the paper (transductive), or on other images of the same characters "
    "(inductive); the oracle, the test loss. The paper's head (direct) takes over, and trains no "
    "further, image encoder and attention of the posterior head, which has also seen labels; in "
    "preset `by-itself` it learns to see from gaps alone. Test sets hold equally many images of "
    "each character, which helps methods that see them together."
)
TITLE = "Few-shot images (Omniglot)"
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, figures)

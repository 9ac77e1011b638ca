"""The ablation study: NC's components for images and labels, removed one after the other."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base import few_shot_images as few_shot
from neural_complexity.experiments.base.comparison import label, oracle
from neural_complexity.experiments.base.config import AtLeast
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.held_out_tasks import (
    EmbeddedTasks,
    draw_held_out_tasks,
    train_and_predict,
)
from neural_complexity.experiments.base.rows import Key, Keys, Row, make_row
from neural_complexity.experiments.base.saved_networks import how_made, load_network, load_tensors
from neural_complexity.experiments.base.table_views import distinct, find, select, show
from neural_complexity.experiments.base.training import Setup, train_network
from neural_complexity.experiments.base.without_learner import (
    PROTOTYPICAL,
    train_prototypical,
    without_learner,
)
from neural_complexity.meta import scores
from neural_complexity.meta.scores import count, estimate, estimate_mean, r_squared
from neural_complexity.model.cached import embed_store
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "ablation"
SQUARED: dict[str, Any] = {"criterion": "squared"}
VARIANTS: dict[str, dict[str, Any]] = {  # what each changes of the full NC
    # The paper's, each with the changes of those before it.
    "full": {},
    "- Huber loss": SQUARED,
    "- bias": SQUARED | {"bias": False},
    "- loss conditioning": SQUARED | {"bias": False, "loss_conditioning": False},
    "- bilinear layer": SQUARED | {"bias": False, "loss_conditioning": False, "bilinear": False},
    # Ours, each a single change.
    "full, scalar supervision": {"supervision": "set"},
    "full, no pseudo-predictions": {"made_up": 0.0},
    "full, attention on (x, h(x)), as in the paper": {"metric": False, "rounds": 0},
}
PAPER = {
    "full": few_shot.PAPER_ACCURACY,
    "- Huber loss": 89.74,
    "- bias": 84.30,
    "- loss conditioning": 72.09,
    "- bilinear layer": 23.69,
}
INDUCTIVE = "full, other unlabelled inputs"  # the full NC, used in another way
OURS = (INDUCTIVE, *(name for name in VARIANTS if name not in PAPER))
COLUMNS: dict[str, tuple[str, Keys]] = {
    "test loss": ("test loss", {}),
    "R2, unregularized": ("R2", {"evaluated_on": "unregularized"}),
    "R2, regularized": ("R2", {"evaluated_on": "regularized"}),
}

Scores = dict[str, Tensor]  # from `train_and_predict`, also with prefixes
Train = Callable[..., Scores]  # `train_and_predict` with some settings


@dataclass(frozen=True, kw_only=True)
class Config(few_shot.FewShotConfig):
    """Variants of the direct head, each from several seeds; the defaults are the paper's."""

    seeds: Annotated[int, AtLeast(1)] = 3
    """Trainings of each variant, from seeds `seed`, `seed + 1`, ..."""
    training: few_shot.LabelTraining = field(default_factory=few_shot.LabelTraining)
    """The full NC with the paper's head."""
    encoder: few_shot.LabelTraining = field(default_factory=few_shot.LabelTraining)
    """The NC with our head, whose image encoder and sense of which images are alike all variants
    take over, trained no further."""
    networks: str = ""
    """The folder of a finished run of `omniglot`, to take that NC from; trained here if empty."""


TINY = few_shot.TINY | {"updates": 2, "batch": 16, "decoder_layers": 1}
SHORT = {"iterations": 48, "tasks": 8, "updates": 24, "batch": 40, "validation_tasks": 16}
PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": lambda: Config(
        **few_shot.SMOKE,
        seeds=2,
        training=few_shot.direct(**TINY),
        encoder=few_shot.posterior(**TINY),
    ),
    "cpu": lambda: Config(  # an hour on two cores
        eval_tasks=128,
        training=few_shot.direct(**SHORT),
        encoder=few_shot.posterior(iterations=220, tasks=32),
    ),
    "paper": lambda: Config(learner_width=500, lr=0.01, steps=2000),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Meta-trains every variant from every seed and trains the same learners with each."""
    family, held_out = config.train_family(), draw_held_out_tasks(config)
    recipe = config.recipe(family.images.pixels.shape[1:])
    setup = Setup(family=family, recipe=recipe, seed=config.seed, device=config.device)
    history, prototypical = {}, None
    if config.networks:  # all must be there before hours pass
        encoder = load_network(config.networks, "posterior", "omniglot", config.device)
        prototypical = load_tensors(config.networks, f"{PROTOTYPICAL}/", "omniglot")
    else:
        encoder, statuses = train_network(config.encoder, "posterior", setup, work, callback)
        history = {"posterior": statuses}
    embedded = EmbeddedTasks(encoder, held_out)
    total, seed = 3 + (prototypical is None) + len(VARIANTS) * config.seeds, config.seed
    parts = Parts(work, total, callback)
    train = partial(train_and_predict, recipe, seed)
    best = oracle(recipe, held_out.task).penalty
    once = {
        "no NC": parts.do("no NC", partial(train, {"nc": embedded})),
        "oracle": parts.do("oracle", partial(train, {"nc": embedded}, best)),
        "posterior head": parts.do("posterior head", partial(_judged, train, embedded)),
    }
    rows = [row for name, kept in once.items() for row in _rows(seed, kept, method=name)]
    embeddings = embed_store(encoder, family.images, torch.arange(len(family.images)))
    setup = replace(setup, images_from=encoder, embeddings=embeddings)
    results: dict[str, dict[int, Scores]] = {name: {} for name in VARIANTS}
    for k in range(seed, seed + config.seeds):  # a table can be made of the seeds that are done
        of_seed = (config, replace(setup, seed=k), embedded, train)
        for variant, changes in VARIANTS.items():
            name = f"training of {variant}, seed {k}"
            where: dict[str, Any] = {"work": work, "callback": callback, "name": name}
            do = partial(_train_variant, changes, *of_seed, **where)
            results[variant][k] = parts.do(f"{variant}, seed {k}", do)
            work.remove(name)  # its bank is large
    for variant, by_seed in results.items():
        rows += _seed_rows(seed, variant, by_seed)
        if variant == "full":
            rows += _seed_rows(seed, INDUCTIVE, by_seed, "inductive/")
    if prototypical is None:
        train_encoder = partial(train_prototypical, config, config.encoder, family, callback)
        prototypical = parts.do(PROTOTYPICAL, train_encoder)
    for (method, mode), right in without_learner(config, embedded, prototypical).items():
        accuracy = estimate_mean(100 * right)
        rows.append(make_row(NAME, seed, "accuracy", accuracy, method=method, mode=mode))
    tensors = {
        f"{variant}/seed {k}/{name}": kept[name]
        for variant, by_seed in results.items()
        for k, kept in by_seed.items()
        for name in ("accuracy", "validation R2")
    }
    networks = {"posterior": encoder}
    return Outcome(rows, tensors, networks, history, how_made(networks, parts))


def _judged(train: Train, embedded: EmbeddedTasks) -> Scores:
    """Trains learners with an NC and without; the NC predicts the gaps of all."""
    with_nc = partial(train, {"nc": embedded})
    return with_nc(embedded.penalty) | {f"plain/{n}": t for n, t in with_nc().items()}


def _train_variant(
    changes: dict[str, Any],
    config: Config,
    setup: Setup,
    encoder: EmbeddedTasks,
    train: Train,
    **run: Any,
) -> Scores:
    """Meta-trains one variant from one seed and trains learners with it."""
    nc, history = train_network(replace(config.training, **changes), "direct", setup, **run)
    embedded = EmbeddedTasks(nc, encoder.tasks, encoder)
    kept = _judged(train, embedded)
    if not changes:
        inductive = train({"nc": embedded}, partial(embedded.penalty, inductive=True))
        kept |= {f"inductive/{name}": tensor for name, tensor in inductive.items()}
    return {**kept, "validation R2": torch.tensor([status.r2 for status in history])}


def _rows(seed: int, kept: Scores, prefix: str = "", **keys: Key) -> list[Row]:
    """Scores learners, and the NC that judged them, over tasks; leaves out what is not finite."""
    row = partial(make_row, NAME, seed, **keys)
    accuracy, diverged = kept[f"{prefix}accuracy"][-1], kept[f"{prefix}diverged"][0]
    rows = [  # a learner that diverged is right nowhere
        row("accuracy", estimate_mean(100 * torch.where(diverged, 0.0, accuracy))),
        row("diverged tasks", count(diverged)),
    ]
    if (~diverged).sum() > 1:
        rows.append(row("test loss", estimate_mean(kept[f"{prefix}loss_te"][-1, ~diverged])))
    ends = {"unregularized": "plain/", "regularized": ""}
    for end, own in ends.items() if "plain/gap" in kept and not prefix else ():
        predicted, true = (kept[f"{own}{name}"][-1] for name in ("predicted/nc", "gap"))
        fine = ~kept[f"{own}diverged"][0] & predicted.isfinite()
        if fine.sum() > 1:
            score = estimate(r_squared, predicted[fine], true[fine])
            rows.append(row("R2", score, evaluated_on=end))
    return [row for row in rows if math.isfinite(row.value)]


def _seed_rows(seed: int, variant: str, by_seed: dict[int, Scores], prefix: str = "") -> list[Row]:
    """Returns the rows of each seed, and those over seeds of what every seed has."""
    rows = [
        row
        for k, kept in by_seed.items()
        for row in _rows(k, kept, prefix, method=variant, training_seed=k)
    ]
    means = []
    for metric, end in dict.fromkeys((row.metric, row.keys.get("evaluated_on")) for row in rows):
        values = [row.value for row in select(rows, metric, evaluated_on=end)]
        if len(values) == len(by_seed):
            score = scores.estimate_over_seeds(torch.tensor(values, dtype=torch.float64))
            paper = PAPER.get(variant) if metric == "accuracy" else None
            keys = {"method": variant, "evaluated_on": end}
            means.append(make_row(NAME, seed, metric, score, paper, **keys))
    return rows + means


def tables(rows: list[Row]) -> list[Table]:
    """Returns the paper's table, that of our variants, and that of other methods."""
    seeds = [keys["training_seed"] for keys in distinct(rows, "training_seed") if keys]
    header = ("ours", *(f"seed {k}" for k in seeds), *COLUMNS)
    runs = [row for row in select(rows, "diverged tasks") if "training_seed" in row.keys]
    lines = {name: _line(rows, seeds, method=name) for name in (*PAPER, *OURS)}
    return [
        Table(
            f"Accuracy in % of learners with NC, {runs[0].n:,} held-out tasks",
            ("NC", "paper", *header),
            tuple((name, f"{paper:.2f}", *lines[name]) for name, paper in PAPER.items()),
            f"Ours: mean over {len(seeds)} seeds of meta-training ± 95 % interval over seeds "
            "(Student's), then each seed; tasks, initial learners and image encoder are the same, "
            "so the interval does not speak for those. Removed one after the other. R2: "
            "coefficient of determination of predicted against true gap of learners after their "
            "last step, without NC (unregularized) and with it. Learners that diverged count as "
            "wrong everywhere, and have no loss and no gap; over all seeds and variants there were "
            f"{sum(row.value for row in runs):.0f}.",
        ),
        Table(
            "Accuracy in % with single changes of the full NC",
            ("NC", *header),
            tuple((name, *lines[name]) for name in ("full", *OURS)),
            "As above. Other unlabelled inputs: the same NC judges learners "
            "on other images of the task's characters (inductive). Scalar supervision: NC learns "
            "from one gap per learner, not from each test point's loss. No pseudo-predictions: NC "
            "learns from learners only. Attention on (x, h(x)): queries and keys are made from "
            "image and prediction, trained here, compared by their product, without soft k-means; "
            "the image encoder is the same.",
        ),
        Table(
            f"Accuracy in % of other methods, {runs[0].n:,} held-out tasks",
            ("method", "accuracy", *COLUMNS),
            tuple((label(keys), *_line(rows, [], **keys)) for keys in _others(rows)),
            "Value ± 95 % interval over tasks. No NC, oracle (which descends the test loss itself) "
            "and posterior head (the NC whose image encoder all variants use): the same learners. "
            "The others classify without a learner; the prototypical networks have an image "
            "encoder of the same kind, trained on the same tasks as the posterior head.",
        ),
    ]


def _others(rows: list[Row]) -> list[dict[str, Key]]:
    """Returns the keys of methods that no seed of meta-training changes."""
    return [k for k in distinct(rows, "method", "mode") if k["method"] not in (*PAPER, *OURS)]


def _line(rows: list[Row], seeds: list[Key], **keys: Key) -> tuple[str, ...]:
    """Returns accuracy over seeds, then by seed, then what else there is over seeds."""
    single = [find(rows, "accuracy", **keys, training_seed=k) for k in seeds]
    mean = select(rows, training_seed=None)
    return (
        show(find(mean, "accuracy", **keys)),
        *("" if row is None else f"{row.value:.2f}" for row in single),
        *(show(find(mean, metric, **keys, **more), 3) for metric, more in COLUMNS.values()),
    )


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the accuracies."""
    return [
        Drawing(
            "accuracy",
            _bars(outcome.rows),
            "Accuracy with and without NC's components",
            "Bars: mean over seeds of meta-training, or the one value there is. Dots: single "
            "seeds. Diamonds: the paper's values.",
        )
    ]


def _bars(rows: list[Row]) -> Canvas:
    groups: dict[str, tuple[list[Any], str]] = {
        "components removed one after the other": ([{"method": n} for n in PAPER], "direct"),
        "single changes of the full NC": ([{"method": n} for n in OURS], "posterior"),
        "other methods": (_others(rows), "none"),
    }
    sizes = [len(lines) for lines, _ in groups.values()]
    canvas = Canvas(figsize=(8.2, 1.4 + 0.27 * sum(sizes)), layout="constrained")
    axes = canvas.subplots(len(groups), sharex=True, height_ratios=sizes)
    for ax, (title, (lines, color)) in zip(axes, groups.items(), strict=True):
        for i, keys in enumerate(lines):
            _bar(ax, i, select(rows, "accuracy", **keys), COLORS[color])
        ax.set_yticks(range(len(lines)), [label(keys) for keys in lines])
        ax.set(xlim=(0, 100), ylim=(len(lines) - 0.5, -0.5))
        ax.grid(axis="y", visible=False)
        ax.set_title(title, loc="left")
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes[-1].set_xlabel("accuracy in % on held-out tasks")
    return canvas


def _bar(ax: Axes, i: int, rows: list[Row], color: str) -> None:
    (mean,) = select(rows, training_seed=None)
    ax.barh(i, mean.value, height=0.62, color=color, alpha=0.55)
    ax.text(1, i, f"{mean.value:.1f}", va="center", fontsize=8)
    dots = [row.value for row in rows if row is not mean]
    look: dict[str, Any] = {"color": COLORS["target"], "zorder": 3}
    ax.plot(dots, [i] * len(dots), "o", ms=3, label="a seed" if i == 0 else None, **look)
    if mean.paper is not None:
        name = "the paper" if i == 0 else None
        ax.plot(mean.paper, i, "D", ms=6, mfc="none", mew=1.3, label=name, **look)


EXPERIMENT = Experiment(
    name=NAME,
    title="Ablation study",
    lead=(
        "Learners of a single hidden layer see few images of each of several characters that NC "
        "has never seen (the paper: ten characters, one image of each), and descend their training "
        "loss plus the gap that NC predicts on the unlabelled test images (transductive). From the "
        "full NC, the paper's head with all it adds for images and labels, one component after the "
        "other is removed: each row lacks what the rows above it lack, too (without the bilinear "
        "layer, V is again a linear map of embedding and label, as for real targets, and sees the "
        "embedding). Unlike the paper's, every variant takes over, and does not train, the image "
        "encoder and the attention (by distance, with three rounds of soft k-means) of an NC with "
        "our posterior head; it learns values and decoder, from learners and from "
        "pseudo-predictions, point by point. Every variant is meta-trained from several seeds; all "
        "train the same learners on the same tasks. This training is shorter than that of the "
        "experiment omniglot, so the full NC here is not the direct NC there."
    ),
    config=Config,
    presets=PRESETS,
    run=run,
    tables=tables,
    figures=figures,
)

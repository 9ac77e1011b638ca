"""The ablation study: NC's components for images and labels, removed one after the other."""

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import few_shot_images as few_shot
from neural_complexity.experiments.base.comparison import Result, label, oracle, presets
from neural_complexity.experiments.base.config import Count
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Key, Keys, Row, distinct, find, select, show
from neural_complexity.experiments.base.run_folder import load_network, load_tensors
from neural_complexity.experiments.base.training import Setup, train_network
from neural_complexity.meta import scores
from neural_complexity.model.cached import embed_store
from neural_complexity.model.network import NeuralComplexity
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
    # One component at a time; the Huber loss alone is above.
    "full, no bias": {"bias": False},
    "full, no loss conditioning": {"loss_conditioning": False},
    "full, no bilinear layer": {"bilinear": False},
    # Ours, each a single change.
    "full, scalar supervision": {"supervision": "set"},
    "full, no pseudo-predictions": {"made_up": 0.0},
    "full, attention on (x, h(x)), as in the paper": {"metric": False, "rounds": 0},
}
PAPER = dict(zip(VARIANTS, (few_shot.PAPER_ACCURACY, 89.74, 84.30, 72.09, 23.69), strict=False))
INDUCTIVE = "full, other unlabelled inputs"  # the full NC, used in another way
OURS = (INDUCTIVE, *(name for name in VARIANTS if name not in PAPER))
COLUMNS: dict[str, tuple[str, Keys]] = {
    "test loss": ("test loss", {}),
    "R2, unregularized": ("R2", {"evaluated_on": "unregularized"}),
    "R2, regularized": ("R2", {"evaluated_on": "regularized"}),
}


@dataclass(frozen=True, kw_only=True)
class Config(few_shot.FewShotConfig):
    """Variants of the direct head, each from several seeds; the defaults are the paper's."""

    seeds: Count = 5  # Trainings of each variant, from seeds `seed`, `seed + 1`, ...
    training: few_shot.LabelTraining = few_shot.PAPERS  # The full NC with the paper's head.
    encoder: few_shot.LabelTraining = few_shot.PAPERS  # The NC whose image encoder all take over.
    networks: str = ""  # The folder of a run of `omniglot`, for that NC; trained here if empty.
    shipped: bool = False  # Whether that NC is the shipped one, without a prototypical network.


TINY = few_shot.TINY | {"updates": 2, "batch": 16, "decoder_layers": 1}
SHORT: Any = {"iterations": 100, "tasks": 8, "updates": 24, "batch": 40, "validation_tasks": 16}
SMALL: Any = {"training": few_shot.direct(**TINY), "encoder": few_shot.posterior(**TINY)}
SMALL |= few_shot.SMOKE | {"seeds": 2}
LARGER: Any = {"encoder": few_shot.posterior(iterations=220, tasks=32), "eval_tasks": 128}
LARGER |= {"training": few_shot.direct(**SHORT), "shipped": True}
# On two cores, `cpu` takes four hours.
PRESETS = presets(Config, smoke=SMALL, cpu=LARGER, paper=few_shot.PAPERS_LEARNERS)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    family, tasks = config.train_family(), few_shot.draw_held_out_tasks(config)
    recipe, seed, prefix = config.recipe(family.images.pixels.shape[1:]), config.seed, "inductive/"
    setup = Setup(family=family, recipe=recipe, seed=seed, device=config.device)
    history, state = {}, None
    if config.shipped:
        encoder, state = NeuralComplexity.pretrained("omniglot").to(config.device), {}
    elif config.networks:  # all must be there before hours pass
        encoder = load_network(config.networks, "posterior", "omniglot", config.device)
        state = load_tensors(config.networks, f"{few_shot.PROTOTYPICAL}/", "omniglot")
    else:
        encoder, statuses = train_network(config.encoder, "posterior", setup, work, callback)
        history = {"posterior": statuses}
    embedded = few_shot.EmbeddedTasks(encoder, tasks)
    parts = Parts(work, 3 + (state is None) + len(VARIANTS) * config.seeds, callback)
    train = partial(few_shot.train_and_predict, recipe, seed)

    def judged(own: few_shot.EmbeddedTasks) -> Result:
        """Trains learners with an NC and without; the NC predicts the gaps of all."""
        kept = train({"nc": own}, own.penalty)
        return kept | {f"plain/{n}": t for n, t in train({"nc": own}).items()}

    def train_variant(k: int, name: str, changes: dict[str, Any]) -> Result:
        training, of_seed = replace(config.training, **changes), replace(shared, seed=k)
        nc, told = train_network(training, "direct", of_seed, work, callback, name=name)
        own = few_shot.EmbeddedTasks(nc, tasks, embedded)
        kept = judged(own) | {"validation R2": torch.tensor([status.r2 for status in told])}
        if not changes:
            inductive = train({"nc": own}, partial(own.penalty, inductive=True))
            kept |= {f"{prefix}{n}": t for n, t in inductive.items()}
        return kept

    plain, best = partial(train, {"nc": embedded}), oracle(recipe, tasks[0]).penalty
    once = {"no NC": plain, "oracle": partial(plain, best)}
    once["posterior head"] = partial(judged, embedded)
    rows = [r for name, do in once.items() for r in _rows(seed, parts.do(name, do), method=name)]
    embeddings = embed_store(encoder, family.images, torch.arange(len(family.images)))
    shared = replace(setup, images_from=encoder, embeddings=embeddings)
    results: dict[str, dict[int, Result]] = {name: {} for name in VARIANTS}
    tensors: Result = {}
    for k in range(seed, seed + config.seeds):  # a table can be made of the seeds that are done
        for variant, changes in VARIANTS.items():
            name = f"training of {variant}, seed {k}"
            do = partial(train_variant, k, name, changes)
            results[variant][k] = parts.do(f"{variant}, seed {k}", do)
            work.remove(name)  # its bank is large
    if state is None:
        do = partial(config.train_prototypical, config.encoder, family, callback)
        state = parts.do(few_shot.PROTOTYPICAL, do)
    for variant, by_seed in results.items():
        rows += _seed_rows(seed, variant, by_seed)
        if variant == "full":
            rows += _seed_rows(seed, INDUCTIVE, by_seed, prefix)
        for k, name in product(by_seed, ("accuracy", "validation R2")):
            tensors[f"{variant}/seed {k}/{name}"] = by_seed[k][name]
    for (method, mode), right in few_shot.without_learner(config, embedded, state).items():
        accuracy = scores.estimate_mean(100 * right)
        rows.append(Row.of(NAME, seed, "accuracy", accuracy, method=method, mode=mode))
    networks = {"posterior": encoder}
    return Outcome(rows, tensors, networks, history, parts.facts(networks))


def _rows(seed: int, kept: Result, prefix: str = "", **keys: Key) -> list[Row]:
    """Scores learners, and the NC that judged them, over tasks; leaves out what is not finite."""
    row = partial(Row.of, NAME, seed, **keys)
    accuracy, diverged = kept[f"{prefix}accuracy"][-1], kept[f"{prefix}diverged"][0]
    rows = [  # a learner that diverged is right nowhere
        row("accuracy", scores.estimate_mean(100 * torch.where(diverged, 0.0, accuracy))),
        row("diverged tasks", scores.count(diverged)),
    ]
    if (~diverged).sum() > 1:
        rows.append(row("test loss", scores.estimate_mean(kept[f"{prefix}loss_te"][-1, ~diverged])))
    ends = {"unregularized": "plain/", "regularized": ""}
    for end, own in ends.items() if "plain/gap" in kept and not prefix else ():
        predicted, true = (kept[f"{own}{name}"][-1] for name in ("predicted/nc", "gap"))
        fine = ~kept[f"{own}diverged"][0] & predicted.isfinite()
        if fine.sum() > 1:
            score = scores.estimate(scores.r_squared, predicted[fine], true[fine])
            rows.append(row("R2", score, evaluated_on=end))
    return [row for row in rows if math.isfinite(row.value)]


def _seed_rows(seed: int, variant: str, by_seed: dict[int, Result], prefix: str = "") -> list[Row]:
    """Returns the rows of each seed, and those over seeds of what every seed has."""
    single, means, row = [], [], partial(Row.of, NAME, seed, method=variant)
    for k, kept in by_seed.items():
        single += _rows(k, kept, prefix, method=variant, training_seed=k)
    for metric, end in dict.fromkeys((r.metric, r.keys.get("evaluated_on")) for r in single):
        values = [r.value for r in select(single, metric, evaluated_on=end)]
        if len(values) == len(by_seed):
            score = scores.estimate_over_seeds(torch.tensor(values, dtype=torch.float64))
            paper = PAPER.get(variant) if metric == "accuracy" else None
            means.append(row(metric, score, paper, evaluated_on=end))
    return single + means


def tables(rows: list[Row]) -> list[Table]:
    seeds = [keys["training_seed"] for keys in distinct(rows, "training_seed") if keys]
    header = ("ours", *(f"seed {k}" for k in seeds), *COLUMNS)
    runs = [row for row in select(rows, "diverged tasks") if "training_seed" in row.keys]
    mean = select(rows, training_seed=None)

    def line(seeds: list[Key], **keys: Key) -> list[str]:
        """Returns accuracy over seeds, then by seed, then what else there is over seeds."""
        single = [find(rows, "accuracy", **keys, training_seed=k) for k in seeds]
        others = [show(find(mean, metric, **keys, **more), 3) for metric, more in COLUMNS.values()]
        each = ["" if row is None else f"{row.value:.2f}" for row in single]
        return [show(find(mean, "accuracy", **keys)), *each, *others]

    ours = _ours(rows)
    lines = {name: line(seeds, method=name) for name in (*PAPER, *ours)}
    return [
        Table(
            f"Accuracy in % of learners with NC, {runs[0].n:,} held-out tasks",
            ("NC", "paper", *header),
            tuple((name, f"{paper:.2f}", *lines[name]) for name, paper in PAPER.items()),
            f"Ours: mean over {len(seeds)} seeds of meta-training ± 95 % interval (Student's), "
            "then each seed. Removed one after the other. R2: coefficient of determination of "
            "predicted against true gap of learners after their last step, without NC "
            "(unregularized) and with it. Learners that diverged count as wrong everywhere; over "
            f"all seeds and variants there were {sum(row.value for row in runs):.0f}.",
        ),
        Table(
            "Accuracy in % with single changes of the full NC",
            ("NC", *header),
            tuple((name, *lines[name]) for name in ("full", *ours)),
            "As above. Other unlabelled inputs: NC judges on other images of the same characters "
            "(inductive). Scalar supervision: NC learns from one gap per learner, not from each "
            "test point's loss. No pseudo-predictions: from learners only. Attention on (x, h(x)): "
            "trained here, by the product of queries and keys, without soft k-means.",
        ),
        Table(
            f"Accuracy in % of other methods, {runs[0].n:,} held-out tasks",
            ("method", "accuracy", *COLUMNS),
            tuple((label(keys), *line([], **keys)) for keys in _others(rows)),
            "Value ± 95 % interval over tasks. No NC, oracle (which descends the test loss itself) "
            "and posterior head (whose image encoder all variants use): the same learners. The "
            "others classify without a learner, prototypical networks with such an encoder.",
        ),
    ]


def _ours(rows: list[Row]) -> list[str]:
    """Returns the single changes that a run has."""
    return [name for name in OURS if find(rows, "accuracy", method=name, training_seed=None)]


def _others(rows: list[Row]) -> list[dict[str, Key]]:
    """Returns the keys of methods that no seed of meta-training changes."""
    return [k for k in distinct(rows, "method", "mode") if k["method"] not in (*PAPER, *OURS)]


def figures(outcome: Outcome) -> list[Drawing]:
    groups: dict[str, tuple[list[Any], str]] = {
        "components removed one after the other": ([{"method": n} for n in PAPER], "direct"),
        "single changes": ([{"method": n} for n in _ours(outcome.rows)], "posterior"),
        "other methods": (_others(outcome.rows), "none"),
    }
    sizes = [len(lines) for lines, _ in groups.values()]
    height = 1.4 + 0.27 * sum(sizes)
    canvas, axes = sketch(8.2, height, len(groups), sharex=True, height_ratios=sizes)
    look: dict[str, Any] = {"color": COLORS["target"], "zorder": 3}
    for ax, (title, (lines, color)) in zip(axes, groups.items(), strict=True):
        for i, keys in enumerate(lines):
            rows = select(outcome.rows, "accuracy", **keys)
            (mean,) = select(rows, training_seed=None)
            ax.barh(i, mean.value, height=0.62, color=COLORS[color], alpha=0.55)
            ax.text(1, i, f"{mean.value:.1f}", va="center", fontsize=8)
            dots = [row.value for row in rows if row is not mean]
            ax.plot(dots, [i] * len(dots), "o", ms=3, label=None if i else "a seed", **look)
            if mean.paper is not None:
                name = None if i else "the paper"
                ax.plot(mean.paper, i, "D", ms=6, mfc="none", mew=1.3, label=name, **look)
        ax.set_yticks(range(len(lines)), [label(keys) for keys in lines])
        ax.set(xlim=(0, 100), ylim=(len(lines) - 0.5, -0.5))
        ax.grid(axis="y", visible=False)
        ax.set_title(title, loc="left")
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes[-1].set_xlabel("accuracy in % on held-out tasks")
    caption = "Bars: mean over seeds of meta-training. Dots: single seeds. Diamonds: the paper's."
    return [Drawing("accuracy", canvas, "Accuracy with and without NC's components", caption)]


LEAD = (
    "Learners and tasks are those of the experiment omniglot (MLP, transductive). From the full "
    "NC, the paper's head, one component after the other is removed (without the bilinear layer, V "
    "is a linear map of embedding and label). Unlike the paper's, every variant takes over image "
    "encoder and attention (by distance, with soft k-means) of an NC with our posterior head; it "
    "learns values and decoder only, also from pseudo-predictions, point by point, and shorter "
    "than in omniglot: the full NC here is not the direct NC there."
)
EXPERIMENT = Experiment(NAME, "Ablation study", LEAD, Config, PRESETS, run, tables, figures)

"""Section 4.4, "Single Image Classification Tasks": one dataset, NC against other regularizers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base.config import POSITIVE, AtLeast
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.held_out_splits import (
    BY_SIZE,
    draw_gap_fits,
    draw_split,
    fit_table,
    size_table,
    split_rows,
    train_ncs,
    train_splits,
)
from neural_complexity.experiments.base.image_comparison import (
    METHODS,
    WholeDataset,
    accuracy_rows,
    accuracy_table,
    classifier_rows,
    joint_table,
    train_cnn,
    tune,
    tuning_rows,
    tuning_table,
)
from neural_complexity.experiments.base.image_learners import (
    BASELINES,
    CNN,
    DISTILLED,
    ImageMethod,
    baseline_recipe,
    chunks,
    fit_rows,
)
from neural_complexity.experiments.base.image_report import (
    MODES,
    accuracies,
    draw_accuracies,
    draw_curves,
)
from neural_complexity.experiments.base.one_dataset import (
    ImageConfig,
    Size,
    SplitTraining,
    load_data,
    split_direct,
    split_posterior,
)
from neural_complexity.experiments.base.rows import Row, make_row
from neural_complexity.experiments.base.saved_networks import HEADS
from neural_complexity.experiments.base.table_views import distinct, select
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT", "PRESETS", "Config"]

NAME = "single"
# Table 5: accuracies of 5 runs.
PAPER_METHODS = (*METHODS[:4], ImageMethod("NC", "direct", "transductive"))
PAPER = {
    "mnist": (98.31, 98.36, 98.57, 97.80, 99.03),
    "fashion-mnist": (88.21, 88.46, 89.15, 89.50, 89.74),
    "kmnist": (91.12, 91.31, 91.40, 91.10, 96.30),
    "svhn": (93.23, 94.06, 94.70, 94.88, 93.83),
    "cifar-10": (79.76, 79.84, 80.45, 80.92, 81.15),
}
Strengths = Annotated[tuple[float, ...], POSITIVE]


@dataclass(frozen=True, kw_only=True)
class Config(ImageConfig):
    """NC against other regularizers, each of which is tuned on held-out images."""

    l2: Strengths = (0.0001, 0.001, 0.003)
    """Strengths of weight decay to choose from."""
    smoothing: Strengths = (0.05, 0.1, 0.2)
    """Strengths of label smoothing to choose from."""
    mixup: Strengths = (0.1, 0.2, 0.5)
    """Strengths of mixup to choose from."""
    dropout: Strengths = (0.2, 0.35, 0.5)
    """Strengths of dropout to choose from."""
    sam: Strengths = (0.05, 0.1, 0.2)
    """Radii of sharpness-aware minimization to choose from."""
    sizes: Annotated[tuple[int, ...], AtLeast(1)] = (1000, 4000, 16_000, 40_000)
    """Training points of the held-out splits that NC is scored on."""
    split_steps: Size = 1000
    """Updates of the learners of those."""
    cnn_updates: Size = 20_000
    """Updates of the CNN that is trained directly; the presets show it as many labels as NC."""
    cnn_batch: Size = 256
    """Images of each of these."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (*BASELINES, "sizes"):
            if not getattr(self, name):
                raise ValueError(f"{name} must hold at least one number, got none")

    @property
    def strengths(self) -> list[tuple[str, float]]:
        """Each of `BASELINES` with each of its strengths."""
        return [(name, strength) for name in BASELINES for strength in getattr(self, name)]


# Two strengths of each baseline: tuning takes as long as everything else otherwise.
FEWER: dict[str, Any] = {"l2": (0.0003, 0.003), "smoothing": (0.1, 0.2), "mixup": (0.1, 0.3)}
FEWER |= {"dropout": (0.2, 0.5), "sam": (0.05, 0.2), "share_images": True, "momentum": 0.9}


def _cpu(**changes: Any) -> Config:
    """An MLP of 500 units on MNIST or one of its kin, an hour or two on two cores."""
    own: dict[str, Any] = {"dataset": "mnist", "steps": 5000, "looks": 7, "judged": 5000}
    own |= {"eval_tasks": 8, "split_steps": 500, "cnn_updates": 2700}
    own["posterior"] = split_posterior(iterations=30, updates=120)
    own["direct"] = split_direct(iterations=30, updates=120)
    return Config(**(FEWER | own | changes))


def _small() -> Config:
    """The same for ten thousand images, such as KMNIST's test images alone."""
    return _cpu(
        dataset="kmnist-10k",
        held=1000,
        split_train=5000,
        split_test=2000,
        steps=3000,
        judged=2000,
        sizes=(500, 1500, 5000),
        posterior=split_posterior(iterations=30, updates=80, smallest=500),
        direct=split_direct(iterations=30, updates=80, smallest=500),
        cnn_updates=1800,
    )


def _cifar() -> Config:
    """A narrow, shallow residual network on a part of CIFAR-10, on two cores.

    8 filters instead of 64 at first, 3 blocks instead of 8, 10,000 images, 300 steps.
    """
    own: dict[str, Any] = {"train_images": 10_000, "test_images": 2000, "held": 1000}
    own |= {"split_train": 7000, "split_test": 2000, "eval_tasks": 6, "sizes": (500, 2000, 7000)}
    own |= {"learner": "ResNet", "learner_width": 8, "learner_blocks": (1, 1, 1), "lr": 0.05}
    own |= {"steps": 300, "batch": 32, "unlabelled_batch": 32, "looks": 3, "judged": 500}
    learners = {"iterations": 30, "updates": 60, "tasks": 1, "learner_steps": 60, "smallest": 500}
    own |= {"posterior": split_posterior(**learners, flip=True), "direct": split_direct(**learners)}
    return Config(dataset="cifar-10", split_steps=100, cnn_updates=1350, **FEWER, **own)


def _svhn() -> Config:
    """The same on SVHN, whose digits must not be turned around, and a little less of it."""
    config = _cifar()
    return replace(
        config,
        dataset="svhn",
        posterior=replace(config.posterior, flip=False, iterations=20),
        direct=replace(config.direct, iterations=15),
        steps=200,
        cnn_updates=900,
    )


def _svhn_mlp() -> Config:
    """MLP learners on the same part of SVHN: these learn something in the time there is."""
    config = _svhn()
    own: dict[str, Any] = {"learner": "MLP", "learner_width": 500, "lr": 0.01, "runs": 3}
    own |= {"steps": 1500, "batch": 64, "unlabelled_batch": 64, "split_steps": 500}
    for name, training in (("posterior", config.posterior), ("direct", config.direct)):
        own[name] = replace(training, tasks=2, learner_steps=300)
    return replace(config, **own)


def _paper_resnet() -> Config:
    """The paper's wiring and sizes for ResNet-18 on CIFAR-10 and SVHN, for a GPU.

    CIFAR-10 has 50,000 training images: those that are held out are missing in the splits.
    """
    deep: dict[str, Any] = {"width": 400, "heads": 8, "self_layers": 3, "batch": 4}
    deep |= {"image_encoder": "resnet", "channels": 64, "image_layers": 4, "unlabelled": 5000}
    own: dict[str, Any] = {"posterior": SplitTraining(**deep), "direct": SplitTraining(**deep)}
    own |= {"learner": "ResNet", "learner_width": 64, "lr": 0.0001, "steps": 100_000}
    return Config(dataset="cifar-10", split_test=5000, **own)


def _smoke() -> Config:
    """Seconds, on scikit-learn's digits; what CI runs."""
    tiny = {"width": 16, "heads": 2, "channels": 8, "M": 16, "N": 16, "iterations": 3}
    tiny |= {"updates": 4, "tasks": 2, "learner_steps": 8, "looks": 4, "smallest": 100}
    tiny |= {"unlabelled": 64}
    own: dict[str, Any] = {"test_images": 120, "held": 200, "split_train": 900, "split_test": 300}
    own |= {"eval_tasks": 6, "runs": 2, "learner_width": 16, "steps": 20, "lr": 0.05}
    own |= {"batch": 32, "unlabelled_batch": 32, "shown": 64, "looks": 3, "judged": 200}
    own |= {"l2": (0.001, 0.01), "smoothing": (0.1,), "mixup": (0.2,), "dropout": (0.2,)}
    own |= {"sam": (0.05,), "sizes": (100, 400, 900), "split_steps": 10, "workers": 0}
    own |= {"posterior": split_posterior(**tiny, shift=1), "cnn_updates": 10, "cnn_batch": 32}
    return Config(**(FEWER | own), direct=split_direct(**(tiny | {"N": 60})))


PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": _smoke,
    "cpu": _cpu,
    "small": _small,
    "cifar": _cifar,
    "svhn": _svhn,
    "svhn-mlp": _svhn_mlp,
    "paper": lambda: Config(dataset="mnist", steps=100_000),
    "paper-resnet": _paper_resnet,
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains both NCs on splits, tunes the baselines, and compares all on the test images."""
    data = load_data(config)
    # What does not fit the dataset is said now, and not when hours have gone.
    splits = {size: draw_split(data, size) for size in config.sizes}
    for head in HEADS:
        data.splits(head)
    total = 2 * len(splits) * len(chunks(config, config.eval_tasks)) + len(config.strengths) + 1
    parts = Parts(work, total + len(METHODS) * len(chunks(config, config.runs)), callback)
    plain = train_splits(parts, splits, config.split_steps, "plain")
    ncs, history = train_ncs(splits, plain, data, work, callback)
    regularized = train_splits(parts, splits, config.split_steps, "with NC", ncs["posterior"])
    size = (ncs["posterior"].nc.architecture, config.cnn_updates, config.cnn_batch)
    logits = parts.do(CNN.label, lambda: {"test": train_cnn(data, *size, callback)})["test"]
    errors = {
        (name, strength): parts.do(
            f"{BASELINES[name].label} {strength:g}, tuning", partial(tune, data, name, strength)
        )["error"][-1].mean()
        for name, strength in config.strengths
    }
    chosen = {
        name: min((error.item(), s) for (other, s), error in errors.items() if other == name)[1]
        for name in BASELINES
    }
    recipes = {BASELINES[name]: baseline_recipe(data, name, s) for name, s in chosen.items()}
    learners = WholeDataset(data, ncs, recipes, logits)
    results = {method: learners.train(parts, method, predict=True) for method in METHODS}
    make = partial(make_row, NAME, config.seed)
    published = dict(zip(PAPER_METHODS, PAPER.get(config.dataset, ()), strict=False))
    rows = accuracy_rows(make, data, results, published)
    rows += classifier_rows(make, data, ncs["posterior"], logits)
    rows += tuning_rows(make, errors, chosen)
    tensors = {f"{m.label}/{k}": t for m, result in results.items() for k, t in result.items()}
    for name, trained in (("plain", plain), ("with NC posterior", regularized)):
        found = {size: splits[size].with_gaps(ncs, result) for size, result in trained.items()}
        rows += split_rows(make, found, name)
        tensors |= {f"splits/{z}/{name}/{k}": t for z, r in found.items() for k, t in r.items()}
    for head in HEADS:  # learners that started alike depend on each other
        everything = list(results.values())
        rows += fit_rows(make, head, everything, independent=False, images="test images")
    facts = {
        "seconds": {name: round(s, 1) for name, s in parts.seconds.items()},
        "strengths": {BASELINES[name].label: strength for name, strength in chosen.items()},
        "images": {name: len(getattr(data, name)) for name in ("train", "held", "pool", "test")},
    }
    return Outcome(rows, tensors, {head: nc.nc for head, nc in ncs.items()}, history, facts)


def tables(rows: list[Row]) -> list[Table]:
    """Returns the paper's table, the fits to the gap, and the choice of strengths."""
    return [accuracy_table(rows), fit_table(rows), size_table(rows), tuning_table(rows)]


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws accuracies, learning curves, and predicted against true gaps."""
    sizes = distinct(select(outcome.rows, BY_SIZE[0]), "size")
    return [
        Drawing(
            "accuracy",
            draw_accuracies(accuracies(outcome.rows)),
            "Accuracy on the test images",
            "Ours with 95 % interval over runs (dots; squares: one network, no learner) and "
            "the paper's (circles). The dotted line is cross-entropy.",
        ),
        Drawing(
            "curves",
            draw_curves(outcome.tensors, more=[DISTILLED]),
            "While learning",
            "Mean over runs. Left and middle: train loss solid, test loss dashed. Right: test "
            "error; dashed where NC judges on held-out training images instead (inductive).",
        ),
        Drawing(
            "gap-fit",
            draw_gap_fits(outcome.tensors, [int(keys["size"]) for keys in sizes]),
            "Predicted against true gap on held-out splits",
            "Large dots: learners after their last step, to which R2 belongs; small dots: on "
            "their way. Left: plain learners. Right: learners regularized by the posterior head.",
        ),
    ]


EXPERIMENT = Experiment(
    name=NAME,
    title="One image dataset",
    lead=(
        "NC is meta-trained on random splits of a dataset's training images, and then regularizes "
        "learners of all of them, which are evaluated on the test images. " + MODES + "The "
        "baselines' strengths are chosen on those held-out images; early stopping learns without "
        "them and stops where its error on them is least. All learners start from the same weights "
        "and take the same number of steps. Three lines say where NC's help comes from: NC's own "
        "beliefs used as a classifier without a learner, a network of NC's image encoder trained "
        "directly on the same labels, and the learner that is regularized as by the posterior "
        "head, but with that network's answers on the unlabelled test images in the place of NC's "
        "beliefs (distilled)."
    ),
    config=Config,
    presets=PRESETS,
    run=run,
    tables=tables,
    figures=figures,
    joint=joint_table,
)

"""Section 4.4, "Effect of Dataset Size": the gap and NC's estimate of it by training images."""

from dataclasses import dataclass, replace
from functools import partial

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments import single
from neural_complexity.experiments.base import image_learners as images
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.image_report import fit_rows, fit_table, size_colors
from neural_complexity.experiments.base.one_dataset import SingleNetworksConfig, Sizes
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Row, distinct, find, select, show
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.meta.scores import estimate_over_seeds
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "dataset_size"
GAPS = {"gap": {"method": "true"}}  # keys of rows by what was measured
GAPS |= {f"predicted/{head}": {"method": "NC", "head": head} for head in HEADS}


@dataclass(frozen=True, kw_only=True)
class Config(SingleNetworksConfig):
    """Unregularized learners of parts of the training images."""

    sizes: Sizes = (1000, 4000, 16_000, 60_000)  # Training images (the paper does not say).


SMALL = {"sizes": (500, 2000, 8000), "looks": 12, "judged": 8000, "runs": 3}
PRESETS = {
    "smoke": partial(Config.like, single.PRESETS["smoke"], sizes=(100, 1000), looks=4),
    "cpu": partial(Config.like, single.PRESETS["small"], **SMALL),
    "paper": partial(Config.like, single.PRESETS["paper"], dataset="kmnist", looks=24),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains learners of each size and compares their gap on the test images with NC's estimate."""
    data, ncs = images.load_ncs(config)
    n = len(data.train)
    if max(config.sizes) > n:
        raise ValueError(f"sizes must be at most the {n} training images, got {config.sizes}")
    together, plain = config.chunks(config.runs), images.WholeDataset(data, {}, {})
    parts = Parts(work, len(config.sizes) * len(together), callback)

    def train(size: int, runs: range) -> images.Results:
        generator = stream(config.seed, "dataset size", size, runs.start)
        task, evaluation = data.subsets(data.train, data.test, size, len(runs), generator)
        trial = plain.trial(images.PLAIN, runs)
        return images.run_trial(replace(trial, task=task, evaluation=evaluation), ncs)

    names = {size: f"{size} images" for size in config.sizes}
    found = images.train_all(parts, names, together, train)
    make = partial(Row.of, NAME, config.seed)
    rows = []
    for size, result in found.items():
        ends = {name: estimate_over_seeds(result[name][-1]) for name in sorted(GAPS)}
        rows += [make("gap", end, **GAPS[name], size=size) for name, end in ends.items()]
        accuracy = estimate_over_seeds(100 * (1 - result["error"][-1]))
        rows.append(make("accuracy", accuracy, **GAPS["gap"], size=size))
    rows += [row for head in ncs for row in fit_rows(make, head, found.values())]
    tensors = {f"{size}/{k}": t for size, result in found.items() for k, t in result.items()}
    return Outcome(rows, tensors, facts=parts.facts({h: nc.nc for h, nc in ncs.items()}))


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of gaps by size and of the fit."""
    gaps, lines = select(rows, "gap"), []
    for keys in distinct(gaps, "size"):
        found = [find(rows, "gap", **own, **keys) for own in GAPS.values()]
        accuracy = show(find(rows, "accuracy", **keys))
        lines.append((str(keys["size"]), *(show(row, 3) for row in found), accuracy))
    title = f"Gap after the last step by training images, {gaps[0].n} runs"
    header = ("training images", "true gap", *(f"NC {head}" for head in HEADS), "accuracy in %")
    note = "Value ± 95 % interval over runs, each on other training images."
    by_size = Table(title, header, tuple(lines), note)
    title = "Predicted against true gap, all sizes and runs"
    note = (
        "Value ± 95 % interval over learners after their last step (endpoints); at all snapshots "
        "but that before the first step (all the way), which depend on each other, there is no "
        "interval. R2 is the coefficient of determination."
    )
    return [by_size, fit_table(rows, title, note, "values")]


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the gaps while learning."""
    canvas, axes = sketch(8.8, 3.7, 1, len(HEADS), sharey=True)
    for ax, head in zip(axes, HEADS, strict=True):
        name, tensors = f"predicted/{head}", outcome.tensors
        for size, color in size_colors(outcome.rows).items():
            look = {"color": color, "lw": 1.4}
            steps, true, own = (tensors[f"{size}/{n}"][1:] for n in ("step", "gap", name))
            ax.plot(steps, own.mean(dim=1), **look, label=f"{size:,} images")
            ax.plot(steps, true.mean(dim=1), "--", **look)
        ax.set(xscale="log", xlabel="learner step", title=f"NC {head}")
    axes[0].plot([], color=COLORS["target"], label="NC's estimate")
    axes[0].plot([], "--", color=COLORS["target"], label="true gap")
    axes[0].set_ylabel("test loss - train loss")
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    caption = "Mean over runs, by number of training images. The true gap is on the test images."
    return [Drawing("gaps", canvas, "The gap and NC's estimate while learning", caption)]


LEAD = (
    "Unregularized learners of parts of the training images, and how their gap on the test "
    "images grows: smaller training sets are overfitted more. NC was meta-trained on splits of "
    "the training images and sees no label of a test image. The paper gives a figure of this, "
    "but no numbers."
)
EXPERIMENT = Experiment(NAME, "Dataset size", LEAD, Config, PRESETS, run, tables, figures)

"""Section 4.4, "Network Size": plain learners of two and four times the capacity against NC."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from neural_complexity.assessment.tables import Table
from neural_complexity.experiments import single
from neural_complexity.experiments.base.config import AtLeast
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.image_comparison import WholeDataset
from neural_complexity.experiments.base.image_learners import (
    NC_METHODS,
    PLAIN,
    ImageMethod,
    chunks,
    learner_rows,
)
from neural_complexity.experiments.base.image_report import (
    MODES,
    accuracies,
    accuracy_cells,
    describe,
    draw_accuracies,
    verdict,
)
from neural_complexity.experiments.base.one_dataset import load_data
from neural_complexity.experiments.base.rows import Row, make_row
from neural_complexity.experiments.base.saved_networks import how_made
from neural_complexity.experiments.base.single_networks import (
    SingleNetworksConfig,
    load_ncs,
    reference_rows,
    reference_table,
    shared_with,
)
from neural_complexity.experiments.base.table_views import find
from neural_complexity.learners.networks import pooled
from neural_complexity.meta.scores import Estimate
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "capacity"


# Table 4 of the paper: accuracies.
PAPER_METHODS = (
    *(replace(PLAIN, times=times) for times in (1, 2, 4)),
    ImageMethod("NC", "direct", "transductive"),
)
PAPER = {"svhn": (93.23, 93.59, 93.88, 93.83), "cifar-10": (79.76, 79.64, 80.47, 81.15)}


@dataclass(frozen=True, kw_only=True)
class Config(SingleNetworksConfig):
    """Learners of several capacities, and one with NC."""

    times: Annotated[tuple[int, ...], AtLeast(1)] = (1, 2, 4)
    """How many networks are trained jointly as one plain learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.times or len(set(self.times)) < len(self.times):
            raise ValueError(f"times must be different numbers, got {self.times}")


def _preset(name: str, **changes: object) -> Config:
    return Config(**shared_with(single.PRESETS[name](), **changes))


PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": lambda: _preset("smoke"),
    "cpu": lambda: _preset("cpu", dataset="fashion-mnist", looks=4, runs=3),
    "cifar": lambda: _preset("cifar"),
    "svhn": lambda: _preset("svhn"),
    "paper": lambda: _preset("paper-resnet"),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains plain learners of each capacity, and learners of the usual one with each NC."""
    data = load_data(config)
    ncs = load_ncs(config, data)
    recipe, recipes = data.recipe(), {}
    for times in config.times:
        make = recipe.make if times == 1 else partial(pooled, recipe.make, times)
        recipes[replace(PLAIN, times=times)] = replace(recipe, make=make)
    methods = (*recipes, *NC_METHODS)
    learners = WholeDataset(data, ncs, recipes)
    parts = Parts(work, len(methods) * len(chunks(config, config.runs)), callback)
    published = dict(zip(PAPER_METHODS, PAPER.get(config.dataset, ()), strict=False))
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    for method in methods:
        result = learners.train(parts, method)
        with torch.device("meta"):  # sizes only: nothing is drawn
            weights = sum(
                parameter.numel() for parameter in recipes.get(method, recipe).make().parameters()
            )
        row = partial(make_row, NAME, config.seed, **method.keys, **config.keys)
        rows += learner_rows(row, result, paper=published.get(method))
        rows.append(row("parameters", Estimate(weights, None, 1)))
        tensors |= {f"{method.label}/{name}": tensor for name, tensor in result.items()}
    rows += reference_rows(config, NAME)
    return Outcome(rows, tensors, facts=how_made({h: nc.nc for h, nc in ncs.items()}, parts))


def tables(rows: list[Row]) -> list[Table]:
    """Returns the paper's table, and what shows where NC's help comes from."""
    found = accuracies(rows)
    lines = []
    for method, row in found.items():
        size = find(rows, "parameters", **row.keys)
        assert size is not None
        lines.append((method.label, f"{size.value:,.0f}", *accuracy_cells(rows, row)))
    first = next(iter(found.values()))
    plain = [method for method in found if method.head is None]
    said = [verdict(found, method, plain) for method in NC_METHODS]
    header = ("accuracy", "test loss", "train loss", "paper's accuracy")
    return [
        Table(
            f"Accuracy in % on the test images: {describe(first)}, {first.n} runs",
            ("learner", "its parameters", *header),
            tuple(lines),
            " ".join(["Value ± 95 % interval over runs.", *said]),
        ),
        reference_table(rows),
    ]


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the table."""
    return [
        Drawing(
            "accuracy",
            draw_accuracies(accuracies(outcome.rows)),
            "Accuracy on the test images",
            "Ours with 95 % interval over runs (dots) and the paper's (circles). The dotted "
            "line is the plain learner of the usual size.",
        )
    ]


EXPERIMENT = Experiment(
    name=NAME,
    title="Network size",
    lead=(
        "Does NC help only because there are more parameters? Plain learners of a multiple of the "
        "capacity, which are several networks trained jointly whose predictions are averaged, at "
        "the same learning rate, against learners of the usual size with NC. " + MODES + "NC's own "
        "parameters are not the learner's and are not counted."
    ),
    config=Config,
    presets=PRESETS,
    run=run,
    tables=tables,
    figures=figures,
)

"""Section 4.4, "Network Size": plain learners of two and four times the capacity against NC."""

from dataclasses import dataclass, replace
from functools import partial

import torch

from neural_complexity.assessment.report import Table
from neural_complexity.experiments import single
from neural_complexity.experiments.base import image_learners as images
from neural_complexity.experiments.base import image_report as report
from neural_complexity.experiments.base.experiment import Experiment, Outcome, Parts
from neural_complexity.experiments.base.one_dataset import SingleNetworksConfig, Sizes
from neural_complexity.experiments.base.rows import Row
from neural_complexity.learners.networks import pooled
from neural_complexity.meta.scores import Estimate
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME, TITLE = "capacity", "Network size"
# Table 4 of the paper: accuracies.
PAPER_METHODS = (*(images.PLAIN._replace(times=n) for n in (1, 2, 4)), single.PAPER_METHODS[-1])
PAPER = {"svhn": (93.23, 93.59, 93.88, 93.83), "cifar-10": (79.76, 79.64, 80.47, 81.15)}


@dataclass(frozen=True, kw_only=True)
class Config(SingleNetworksConfig):
    """Learners of several capacities, and one with NC."""

    times: Sizes = (1, 2, 4)  # How many networks are trained jointly as one plain learner.

    def __post_init__(self) -> None:
        if not self.times or len(set(self.times)) < len(self.times):
            raise ValueError(f"times must be different numbers, got {self.times}")
        super().__post_init__()


MLP = {"dataset": "fashion-mnist", "looks": 4, "runs": 3}
PRESETS = {
    "smoke": partial(Config.like, single.PRESETS["smoke"]),
    "cpu": partial(Config.like, single.PRESETS["cpu"], **MLP),
    "cifar": partial(Config.like, single.PRESETS["cifar"]),
    "svhn": partial(Config.like, single.PRESETS["svhn"]),
    "paper": partial(Config.like, single.PRESETS["paper-resnet"]),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains plain learners of each capacity, and learners of the usual one with each NC."""
    data, ncs = images.load_ncs(config)
    recipe, recipes = data.recipe(), {}
    for times in config.times:
        make = recipe.make if times == 1 else partial(pooled, recipe.make, times)
        recipes[images.PLAIN._replace(times=times)] = replace(recipe, make=make)
    methods = (*recipes, *images.NC_METHODS)
    parts = Parts(work, len(methods) * len(config.chunks(config.runs)), callback)
    published = dict(zip(PAPER_METHODS, PAPER.get(config.dataset, ()), strict=False))
    found = images.WholeDataset(data, ncs, recipes).train(parts, methods)
    rows: list[Row] = []
    for method, result in found.items():
        with torch.device("meta"):  # sizes only: nothing is drawn
            network = recipes.get(method, recipe).make()
        weights = sum(parameter.numel() for parameter in network.parameters())
        row = partial(Row.of, NAME, config.seed, **method.keys, **config.keys)
        rows += report.learner_rows(row, result, paper=published.get(method))
        rows.append(row("parameters", Estimate(weights, None, 1)))
    rows += report.reference_rows(config.networks, NAME)
    tensors = {f"{m.label}/{k}": t for m, result in found.items() for k, t in result.items()}
    return Outcome(rows, tensors, facts=parts.facts({h: nc.nc for h, nc in ncs.items()}))


def tables(rows: list[Row]) -> list[Table]:
    """Returns the paper's table, and what shows where NC's help comes from."""
    return [report.accuracy_table(rows), report.reference_table(rows)]


LEAD = (
    "Does NC help only because there are more parameters? Plain learners of a multiple of the "
    "capacity, which are several networks trained jointly whose predictions are averaged, at the "
    f"same learning rate, against learners of the usual size with NC. {report.MODES}NC's own "
    "parameters are not the learner's and are not counted."
)
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, report.draw_accuracies)

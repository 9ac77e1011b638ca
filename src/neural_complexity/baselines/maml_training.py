"""MAML (Finn et al. 2017): one set of initial parameters from which learners learn quickly."""

import copy
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.baselines.optimize import Optimization, optimize
from neural_complexity.learners.batched import PlacedLearner
from neural_complexity.learners.fit import Recipe, unroll
from neural_complexity.meta.trainer import Status
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task, TaskFamily
from neural_complexity.workspace import Workspace

__all__ = ["MamlTraining", "maml_loss", "start_from", "train_maml"]


@dataclass(frozen=True, kw_only=True)
class MamlTraining(Optimization):
    """The settings of MAML.

    Args:
        tasks: Tasks per update of the initial parameters.
        steps: Updates of a learner that gradients flow through.
    """

    tasks: int
    steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tasks", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def maml_loss(start: PlacedLearner, task: Task, recipe: Recipe, steps: int) -> Tensor:
    """Computes the test loss of learners after a few updates, as a function of where they start.

    Args:
        start: B learners; the result is differentiable in their parameters, to second order.
        task: Their tasks.
        recipe: How they learn; its number of steps and its optimizer are not used.
        steps: The number of updates, by plain gradient descent.

    Returns:
        One value per task, (B,).
    """
    h = unroll(start, task, recipe, steps=steps)
    return recipe.loss(h(task.X_te), task.Y_te).mean(dim=1)


def train_maml(
    family: TaskFamily,
    recipe: Recipe,
    training: MamlTraining,
    *,
    seed: int,
    device: str = "cpu",
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
) -> tuple[nn.Module, list[Status]]:
    """Learns initial parameters from which learners of new tasks learn quickly.

    Each update draws tasks, trains one learner for each from the current parameters, and moves the
    parameters down the mean test loss of the trained learners.

    Args:
        family: Where tasks come from.
        recipe: How learners learn.
        training: The settings.
        seed: The one seed of all draws.
        device: Where parameters and learners live.
        work: Where a checkpoint is kept; see `optimize`.
        callback: Called after each update.

    Returns:
        A module with the initial parameters found, and the losses on the way.
    """
    with seeded(seed, "MAML weights"):
        module = recipe.make().to(device)
    trained = tuple(name for name, p in module.named_parameters() if p.requires_grad)

    def loss(update: int) -> Tensor:
        task = family.sample(training.tasks, stream(seed, "MAML tasks", update)).to(device)
        ledger.record_task("learn", task)
        own = [*module.named_parameters(), *module.named_buffers()]
        state = {name: tensor.expand(training.tasks, *tensor.shape) for name, tensor in own}
        start = PlacedLearner(module, state, trained)
        return maml_loss(start, task, recipe, training.steps).mean()

    own = None if work is None else work.sub("maml", family, recipe, training, seed)
    # Not fused, as the committed results were made: second-order gradients amplify its rounding.
    history = optimize(
        module, loss, training, stage="MAML", work=own, callback=callback, fused=False
    )
    return module, history


def start_from(recipe: Recipe, module: nn.Module) -> Recipe:
    """Returns the same way to learn for learners that all start as copies of one module."""
    return replace(recipe, make=partial(copy.deepcopy, module))

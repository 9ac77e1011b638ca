"""MetaReg (Balaji et al. 2018): a weighted L1 penalty whose weights are meta-learned."""

import torch
from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.baselines.optimize import Optimization, optimize
from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import Recipe, unroll
from neural_complexity.progress import ProgressCallback
from neural_complexity.regularizers.norms import weighted_l1_penalty
from neural_complexity.seeding import stream
from neural_complexity.task import TaskFamily
from neural_complexity.workspace import Workspace

__all__ = ["train_metareg"]


def train_metareg(
    family: TaskFamily,
    recipe: Recipe,
    training: Optimization,
    *,
    tasks: int,
    seed: int,
    device: str = "cpu",
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
) -> list[Tensor]:
    """Meta-learns the weights by descending test losses through the learners' whole training.

    Each update trains new learners on new tasks with the current penalty, as a chain of
    differentiable updates, and moves the weights to where the test loss, averaged over all steps of
    the chain, is lower. The average serves learners that stop early as well as those that go on to
    the end.

    Args:
        family: Where tasks come from.
        recipe: How learners learn; by plain gradient descent.
        training: The settings of Adam.
        tasks: Tasks per update.
        seed: The one seed of all draws.
        device: Where learners live.
        work: Where a checkpoint is kept; see `optimize`.
        callback: Called after each update.

    Returns:
        The weights, one tensor per parameter of a learner, for `weighted_l1_penalty`.
    """
    shapes = [p.shape[1:] for p in stack(recipe.make, 1, stream(seed, "metareg")).parameters()]
    weights = nn.ParameterList(torch.zeros(shape, device=device) for shape in shapes)

    def loss(update: int) -> Tensor:
        task = family.sample(tasks, stream(seed, "metareg tasks", update)).to(device)
        ledger.record_task("learn", task)
        h = stack(recipe.make, tasks, stream(seed, "metareg learners", update)).to(device).placed()
        penalty, losses = weighted_l1_penalty(list(weights)), []
        for _ in range(recipe.steps):
            h = unroll(h, task, recipe, steps=1, regularizer=penalty)
            losses.append(recipe.loss(h(task.X_te), task.Y_te).mean())
        return torch.stack(losses).mean()

    own = None if work is None else work.sub("metareg", family, recipe, training, tasks, seed)
    # Not fused: as in MAML.
    optimize(weights, loss, training, stage="MetaReg", work=own, callback=callback, fused=False)
    return [weight.detach() for weight in weights]

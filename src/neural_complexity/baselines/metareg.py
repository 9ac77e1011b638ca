"""MetaReg (Balaji et al. 2018): a weighted L1 penalty whose weights are meta-learned."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import unroll
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.checkpoint import pack, unpack
from neural_complexity.meta.trainer import lr_factor
from neural_complexity.meta.training_loop import keep, recall
from neural_complexity.regularizers.norms import weighted_l1_penalty
from neural_complexity.seeding import stream
from neural_complexity.task import TaskFamily

__all__ = ["train_metareg"]


def train_metareg(
    family: TaskFamily,
    recipe: Recipe,
    *,
    seed: int,
    iterations: int,
    tasks: int,
    lr: float,
    device: str = "cpu",
    folder: Path | None = None,
    watch: Callable[[int, float, float], None] | None = None,
) -> list[Tensor]:
    """Meta-learns the weights by descending test losses through the learners' whole training.

    Each iteration trains new learners on new tasks with the current penalty, as a chain of
    differentiable updates, and moves the weights (Adam, decaying learning rate) to where the test
    loss, averaged over all steps of the chain, is lower. The average serves learners that stop
    early as well as those that go on to the end.

    Args:
        family: Where tasks come from.
        recipe: How learners learn; by plain gradient descent.
        seed: The one seed of all draws.
        iterations: How often to draw new tasks.
        tasks: Tasks per iteration.
        lr: The peak learning rate.
        device: Where learners live.
        folder: Where the state is kept, so that the same call goes on after an interruption.
        watch: Told after each iteration: how many are done, the seconds that took, and the test
            loss after the last step.

    Returns:
        The weights, one tensor per parameter of a learner, for `weighted_l1_penalty`.

    Raises:
        FloatingPointError: If the loss is not finite.
        ValueError: If the folder holds the state of other settings.
    """
    shapes = [p.shape[1:] for p in stack(recipe.make, 1, stream(seed, "metareg")).parameters()]
    weights = nn.ParameterList(torch.zeros(shape, device=device) for shape in shapes)
    adam = torch.optim.Adam(weights.parameters(), lr=lr)
    settings = [repr(family), recipe.steps, recipe.lr, seed, iterations, tasks, lr]
    identity = json.dumps(settings)
    resume, _ = recall(folder, identity)
    start, before = 0, 0.0
    if resume is not None:
        tensors, counters = resume
        start, before = int(counters["done"]), float(counters["seconds"])
        unpack(tensors, weights, adam)
    every = max(1, iterations // 20)
    begin = time.perf_counter()
    for index in range(start, iterations):
        for group in adam.param_groups:
            group["lr"] = lr * lr_factor(index / iterations, warmup=0.0, decay=True)
        losses = _chain(list(weights), family, recipe, tasks, seed, index, device)  # (steps,)
        if not losses.isfinite().all():
            raise FloatingPointError(
                f"MetaReg's loss must be finite, got {losses[-1].item()} at iteration {index}"
            )
        adam.zero_grad()
        losses.mean().backward()
        adam.step()
        done = index + 1
        if folder is not None and (done % every == 0 or done == iterations):
            counters = {"done": done, "seconds": before + time.perf_counter() - begin}
            keep(folder, identity, (pack(weights, adam), counters), [])
        if watch is not None:
            watch(done, before + time.perf_counter() - begin, losses[-1].item())
    return [weight.detach() for weight in weights]


def _chain(
    weights: list[Tensor],
    family: TaskFamily,
    recipe: Recipe,
    tasks: int,
    seed: int,
    index: int,
    device: str,
) -> Tensor:
    """Gives the mean test loss after each step of new learners, (steps,), differentiably."""
    task = family.sample(tasks, stream(seed, "metareg tasks", index)).to(device)
    h = stack(recipe.make, tasks, stream(seed, "metareg learners", index)).to(device).placed()
    penalty, losses = weighted_l1_penalty(weights), []
    for _ in range(recipe.steps):
        h = unroll(h, task, loss=recipe.loss, steps=1, lr=recipe.lr, regularizer=penalty)
        losses.append(recipe.loss(h(task.X_te), task.Y_te).mean())
    return torch.stack(losses)

"""The learners of `meta_learn`: from a network, a recipe or nothing at all to a tested recipe."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Adam

from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import Affine, image_mlp, mlp
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.seeding import stream
from neural_complexity.task import Task

__all__ = ["batchable", "make_recipe"]

STEPS = 300  # of a learner of which only the network is given


def make_recipe(
    learner: Callable[[], nn.Module] | Recipe | None, example: Task, outputs: int
) -> Recipe:
    """Returns how learners learn, once it is sure that they can.

    Args:
        learner: What `meta_learn` is given.
        example: Some tasks, with values.
        outputs: Outputs or classes.

    Raises:
        TypeError: If the learner builds no module.
        ValueError: If its predictions have another shape.
    """
    shape = tuple(example.X_tr.shape[2:])
    if isinstance(learner, Recipe):
        recipe = learner
    else:
        labels = not example.Y_tr.is_floating_point()
        make = _default_network(example, outputs, labels) if learner is None else learner
        loss = cross_entropy if labels else squared_error
        adam = partial(Adam, fused=True)
        recipe = Recipe(make=make, loss=loss, steps=STEPS, lr=0.003, optimizer=adam)
    if isinstance(recipe.make, nn.Module) or not callable(recipe.make):
        raise TypeError(
            "learner must build a network when called, not be one, got "
            f"{type(recipe.make).__name__}"
        )
    with torch.random.fork_rng(devices=[]):
        h = recipe.make()
    if not isinstance(h, nn.Module):
        raise TypeError(f"learner must build a torch.nn.Module when called, got {type(h).__name__}")
    got = _shape_of_predictions(h.eval(), torch.zeros(2, *shape))
    if got != f"{(2, outputs)}":
        raise ValueError(
            f"learner must map inputs {(2, *shape)} to predictions {(2, outputs)}, got {got}"
        )
    return recipe


@torch.no_grad()
def _shape_of_predictions(h: nn.Module, X: Tensor) -> str:
    try:
        H = h(X)
    except Exception as error:  # the network is the user's and may raise anything
        return f"{type(error).__name__}: {error}"
    return f"{tuple(H.shape)}" if isinstance(H, Tensor) else type(H).__name__


def _default_network(example: Task, outputs: int, labels: bool) -> Callable[[], nn.Module]:
    """Returns an MLP that sees inputs of one scale, and answers in the targets' own."""
    shape = tuple(example.X_tr.shape[2:])
    if len(shape) == 3:
        return partial(image_mlp, shape, (64,), outputs)
    scale, mean = torch.std_mean(example.X_tr.flatten(0, 1), dim=0)
    scale = torch.where(scale > 0, scale, 1.0)
    y_scale, y_mean = torch.ones(outputs), torch.zeros(outputs)
    if not labels:
        y_scale, y_mean = torch.std_mean(example.Y_tr.flatten(0, 1), dim=0)
    return partial(_standardized, (1 / scale, -mean / scale), (y_scale, y_mean), outputs)


def _standardized(
    before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], outputs: int
) -> nn.Module:
    return nn.Sequential(Affine(*before), mlp(len(before[0]), (64,), outputs), Affine(*after))


def batchable(recipe: Recipe, example: Task) -> bool:
    """Returns whether several learners can run at once."""
    h = stack(recipe.make, 2, stream(0, "probe"))
    try:
        torch.autograd.grad(h(example.X_tr[:2]).square().sum(), list(h.parameters()))
    except RuntimeError:  # what vmap cannot do: branch on values, or change a buffer in place
        return False
    return True

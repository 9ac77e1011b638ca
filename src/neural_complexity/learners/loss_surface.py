"""Losses over a plane of parameters around one trained module (Li et al., 2018)."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from neural_complexity.learners.batched import PlacedLearner

__all__ = ["Measure", "filter_normalised", "surface"]

Measure = Callable[[PlacedLearner], dict[str, Tensor]]  # of K learners: named values, (K,) each


def filter_normalised(
    parameters: dict[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """Draws a Gaussian direction in which every filter moves as far as it is long.

    Networks with ReLUs do the same when one layer is doubled and the next is halved, so a step of
    fixed length means nothing by itself; relative to each filter it does. The filters of a
    parameter are its slices along the first axis. Biases and the scales of normalisation have none:
    each number would be one, and move by plus or minus its own size. They stay, as in Li et al.
    """
    directions = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for name, value in parameters.items():
        if value.ndim > 1:
            d = torch.randn(
                value.shape, generator=generator, dtype=value.dtype, device=generator.device
            ).to(value.device)
            rest = tuple(range(1, value.ndim))
            scale, drawn = (torch.linalg.vector_norm(t, dim=rest, keepdim=True) for t in (value, d))
            directions[name] = d * (scale / drawn)
    return directions


@torch.no_grad()
def surface(
    h: nn.Module,
    measure: Measure,
    *,
    generator: torch.Generator,
    size: int = 25,
    radius: float = 1.0,
    chunk: int = 64,
) -> dict[str, Tensor]:
    """Measures any trained module over a plane of two random filter-normalised directions.

    `measure` maps K copies of the module, at most `chunk`, at K points of the plane and in
    evaluation mode, to named values, (K,) each; they map inputs (K, points, D) to (K, points, C).
    The plane theta + alpha d1 + beta d2 reaches `radius` lengths of the filters, with `size` points
    each way; of an odd number the module is in the centre. Returned are the values by name, (size,
    size), alpha down and beta across, and alpha and beta themselves, (size,).
    """
    for name, number, least in (("size", size, 2), ("chunk", chunk, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    template = deepcopy(h).eval()  # a mixture of modes could not be put back otherwise
    theta = {name: p.detach() for name, p in template.named_parameters()}
    if all(value.ndim < 2 for value in theta.values()):
        raise ValueError("h must have a parameter with filters, got none with two axes or more")
    directions = [filter_normalised(theta, generator) for _ in range(2)]
    # Not linspace: the centre is to be zero exactly.
    steps = (torch.arange(size) - (size - 1) / 2) * (2 * radius / (size - 1))  # (size,)
    found: dict[str, list[Tensor]] = {}
    for where in torch.cartesian_prod(steps, steps).split(chunk):  # (K, 2)
        K = len(where)
        values = {n: t.expand(K, *t.shape) for n, t in [*theta.items(), *template.named_buffers()]}
        for name, value in theta.items():
            for direction, step in zip(directions, where.to(value).unbind(dim=1), strict=True):
                if value.ndim > 1:
                    along = step.view(K, *[1] * value.ndim) * direction[name]  # (K, ...)
                    values[name] = values[name] + along
        for name, value in measure(PlacedLearner(template, values, tuple(theta))).items():
            if value.shape != (K,):
                raise ValueError(
                    f"measure must return one value per copy, got shape {tuple(value.shape)} "
                    f"for {K} copies as {name}"
                )
            found.setdefault(name, []).append(value)
    planes = {name: torch.cat(parts).unflatten(0, (size, size)) for name, parts in found.items()}
    return {"alpha": steps, "beta": steps.clone(), **planes}

"""Complexity measures of the size of a network and of norms of its weights."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.linalg import matrix_norm

from neural_complexity.baselines.measures.layers import (
    displacement,
    evaluated,
    matrices,
    safe_log,
    squared_norm,
    weights,
)
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.points import values
from neural_complexity.regularizers.penalties import NORMS
from neural_complexity.task import Task

__all__ = [
    "distance_from_initialization",
    "frobenius_distance",
    "frobenius_distance_over_spectral",
    "frobenius_product",
    "frobenius_sum",
    "group_norm",
    "orthogonality",
    "parameter_norm",
    "parameters",
    "path_norm",
    "spectral_distance",
    "spectral_product",
    "spectral_sum",
    "vc_dimension",
]


def parameters(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the number of parameters (Jiang et al., 2020)."""
    own = weights(h).values()
    return torch.stack([p.new_full((len(p),), p[0].numel()) for p in own]).sum(dim=0)


def vc_dimension(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns n L log2 n, for n parameters in L layers.

    The VC dimension of networks with ReLUs is of this order (Bartlett, Harvey, Liaw and Mehrabian,
    2019).
    """
    n = parameters(h, initial, task)
    return n * len(matrices(h)) * n.log2()


def parameter_norm(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns |w|^2 of all parameters, biases too (Krogh and Hertz, 1992)."""
    return squared_norm(weights(h))


def distance_from_initialization(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns |w - w0|, with w0 the initial parameters (Nagarajan and Kolter, 2019)."""
    return squared_norm(displacement(h, initial)).sqrt()


def frobenius_sum(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns sum_i |W_i|_F^2 over layers (Neyshabur, Tomioka and Srebro, 2015)."""
    return squared_norm(matrices(h))


def frobenius_product(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns sum_i log |W_i|_F^2, the logarithm of the product over layers.

    The bound of Neyshabur, Tomioka and Srebro (2015) is of this product.
    """
    return _log_product([matrix_norm(W) for W in matrices(h).values()])


def frobenius_distance(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns sum_i |W_i - W0_i|_F^2 over layers, without biases (Neyshabur et al., 2019)."""
    return squared_norm(_moves(h, initial))


def spectral_sum(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns sum_i |W_i|_2^2 of largest singular values (Yoshida and Miyato, 2017)."""
    return _total([matrix_norm(W, 2).square() for W in matrices(h).values()])


def spectral_product(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns sum_i log |W_i|_2^2, which bounds the logarithm of the squared Lipschitz constant.

    "prod-of-spec" of Jiang et al. (2020), after Bartlett, Foster and Telgarsky (2017).
    """
    return _log_product([matrix_norm(W, 2) for W in matrices(h).values()])


def spectral_distance(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns sum_i |W_i - W0_i|_2^2 over layers ("dist-spec-init" of Jiang et al., 2020)."""
    return _total([matrix_norm(W, 2).square() for W in _moves(h, initial).values()])


def frobenius_distance_over_spectral(
    h: BatchedLearner, initial: BatchedLearner, task: Task
) -> Tensor:
    """Returns sum_i |W_i - W0_i|_F^2 / |W_i|_2^2 (Pitas, Davies and Vandergheynst, 2017)."""
    moves, layers = _moves(h, initial), matrices(h)
    logs = [
        2 * (safe_log(matrix_norm(moves[name])) - safe_log(matrix_norm(W, 2)))
        for name, W in layers.items()
    ]
    return _total([log.exp() for log in logs])


def group_norm(
    h: BatchedLearner, initial: BatchedLearner, task: Task, *, norm: str = "L1,inf"
) -> Tensor:
    """Returns the logarithm of the product over layers of a norm over units of norms of weights.

    The L_{p,q} norms of Neyshabur, Tomioka and Srebro (2015); `norm` is a name of `NORMS`.
    """
    return safe_log(NORMS[norm](list(matrices(h).values())))


def orthogonality(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the sum over layers of the absolute values of W W' - I (Brock et al., 2017)."""
    return NORMS["orthogonal"](list(matrices(h).values()))


def path_norm(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the root of the sum over paths, from input to output, of products of squared weights.

    That is sqrt(sum_c h_{w^2}(1)_c): one pass of ones through the network with squared parameters
    (Neyshabur, Salakhutdinov and Srebro, 2015). A path may begin at a bias.
    """
    learner = evaluated(h)
    if others := [name for name in learner.values if name not in weights(h)]:
        wanted = "a network of weights and biases alone"
        raise ValueError(f"the path norm needs {wanted}, got buffers {', '.join(others)}")
    squared = replace(learner, values={n: v.square() for n, v in learner.values.items()})
    ones = torch.ones_like(values(task.X_tr[:, :1]))  # (B, 1, D)
    return squared(ones).sum(dim=(1, 2)).sqrt()


def _moves(h: BatchedLearner, initial: BatchedLearner) -> dict[str, Tensor]:
    """Returns trained minus initial matrices of weights, by name."""
    moved = displacement(h, initial)
    return {name: moved[name].flatten(2) for name in matrices(h)}


def _total(layers: list[Tensor]) -> Tensor:
    return torch.stack(layers).sum(dim=0)


def _log_product(norms: list[Tensor]) -> Tensor:
    return 2 * _total([safe_log(norm) for norm in norms])

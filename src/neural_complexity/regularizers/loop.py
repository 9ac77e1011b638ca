"""NC as a regularizer in anybody's training loop: one scalar to add to the loss."""

import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neural_complexity.convert.arrays_in import inputs, targets
from neural_complexity.convert.module_copy import evaluation_copy
from neural_complexity.learners.fit import Learner
from neural_complexity.model.cached import CachedEmbeddings
from neural_complexity.model.network import NeuralComplexity, find_nc
from neural_complexity.points import check_dense
from neural_complexity.regularizers.nc import minibatch_penalty, proof, safeguard_factor
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

__all__ = ["UNTRUSTED", "NCRegularizer", "Weight"]

# What makes an NC that fits be of no use, most of the time.
UNTRUSTED = (
    "NC is not trusted with these training points (trust 0.00) and left out: are the inputs on the "
    "scale that it was made with, and do they say anything about the targets?"
)
TESTS = 10  # minibatches that trust is taken from

Model = Callable[[Tensor], Tensor]  # inputs (points, D) to predictions (points, C)
Weight = float | Callable[[int], float]  # or what it is after so many calls


class NCRegularizer:
    """The penalty weight * factor * max(floor, NC(h)) of a model on a minibatch, Eq. (4).

    Add it to any loss, and train as usual:

        loss = cross_entropy(model(x), y) + penalty(model, x, y, x_unlabelled)

    Judging leaves no trace in the model, its buffers, modes or random numbers. NC is a frozen copy
    that follows the inputs to their device and computes in its own precision, without gradients.

    Args:
        nc: The gap predictor, or the path of a saved one, or the name of one that ships.
        weight: The lambda of Eq. (4), or a function of the number of calls made so far. At 1, the
            paper's, the training loss cancels out and the model learns from NC alone: best if NC
            knows much more than the labels tell, and harmful if it knows less. At 0.1 labels have
            the last word where there are some. At 0 nothing is asked of the model. If `None`, it
            is 0.1; or for an NC for tables the share of X_tr that it sees, which is 1 if it can
            see all, or if X_tr is not given.
        floor: As in `nc_penalty`; the paper's by default.
        safeguard: Whether the weight is multiplied by the square of `trust`, or by `reliance` if NC
            is for tables: that of X_tr and y_tr if they are given, otherwise the mean over the
            minibatches of the first ten calls, without those that have one point of each class.
        mode: `"train"` judges the model as it is, so that the training loss inside the gap is the
            one that training descends; `"eval"` in evaluation mode, which does harm with batch
            normalization (on digits it did): running statistics lag behind, and are constants.
        X_tr: Training points, (points, D) or (points, channels, height, width), of which NC's
            context size are taken at random for its context; x and y of a call then give no more
            than the training loss. Without them the minibatch is the context, as in the paper.
        y_tr: Their labels, (points,), or targets, (points,) or (points, C).
        seed: Decides which of these points are taken.
    """

    def __init__(
        self,
        nc: NeuralComplexity | str | Path,
        *,
        weight: Weight | None = None,
        floor: float | None = -0.1,
        safeguard: bool = True,
        mode: Literal["train", "eval"] = "train",
        X_tr: object = None,
        y_tr: object = None,
        seed: int = 0,
    ) -> None:
        nc = find_nc(nc) if isinstance(nc, str | Path) else nc
        if not isinstance(nc, NeuralComplexity):
            got = type(nc).__name__
            raise TypeError(f"nc must be a NeuralComplexity, a path or a name, got {got}")
        if (X_tr is None) != (y_tr is None):
            raise ValueError("X_tr and y_tr must be given together, got one of them")
        if floor is not None and math.isnan(floor):
            raise ValueError(f"floor must be a number or None, got {floor}")
        if mode not in ("train", "eval"):
            raise ValueError(f"mode must be train or eval, got {mode}")
        self.nc, seen = deepcopy(nc).eval().requires_grad_(False), 1.0
        self.floor, self.safeguard, self.mode = floor, safeguard, mode
        self.outputs = None if nc.symmetric else nc.outputs
        self.calls = 0  # made so far
        self.trust, self.tests = 0.0, 0  # as measured so far, and the calls that it is the mean of
        self._fixed: tuple[Tensor, ...] | None = None  # the context's points, (1, M, ...) each
        if X_tr is not None:
            place: dict[str, Any] = {"dtype": nc.x_mean.dtype, "device": nc.device}
            X = inputs("X_tr", X_tr, shape=nc.shape, **place)
            sizes: dict[str, Any] = {"outputs": self.outputs, "points": len(X)}
            Y = targets("y_tr", y_tr, labels=nc.labels, **sizes, **place)
            order = torch.randperm(len(X), generator=stream(seed, "shown"))
            some = order[: nc.card.context_size].sort().values.to(X.device)
            self._fixed, seen = (X[None, some], Y[None, some]), len(some) / len(X)
        usual = seen if nc.architecture.for_tables else 0.1
        self.weight = usual if weight is None else weight
        self.weight_now()

    def __call__(self, model: Model, x: Tensor, y: Tensor, x_unlabelled: Tensor) -> Tensor:
        """Computes the penalty on a minibatch.

        Args:
            model: Maps inputs to predictions; a module, or any other function.
            x: Inputs of a training minibatch, (points, D) or (points, channels, height, width).
            y: Their labels, (points,), or targets, (points,) or (points, C).
            x_unlabelled: Inputs to judge the model on, any number of them.

        Returns:
            A scalar, differentiable in the model's parameters.

        Raises:
            ValueError: If something does not fit NC, or is not finite; also if trust cannot be
                measured, as no class has two points.
        """
        if not callable(model):
            raise TypeError(f"model must be a module or a function, got {type(model).__name__}")
        weight = self.weight_now()
        penalty = self._penalty(weight, model, x, y, x_unlabelled) if weight else None
        self.calls += 1
        if penalty is not None:
            return penalty
        # On the CPU a scalar goes with losses on any device; and its gradient may be asked for.
        return self.nc.x_mean.new_zeros((), device="cpu", requires_grad=torch.is_grad_enabled())

    def state_dict(self) -> dict[str, Any]:
        """Returns what resumed training needs to continue as if it had not stopped."""
        return {"calls": self.calls, "trust": self.trust, "tests": self.tests}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of another regularizer."""
        if set(state) != set(self.state_dict()):
            got = ", ".join(state) or "none"
            raise ValueError(f"state must hold {', '.join(self.state_dict())}, got {got}")
        self.calls, self.trust, self.tests = state["calls"], state["trust"], state["tests"]

    def weight_now(self) -> float:
        """Returns the weight of the next call."""
        weight = float(self.weight(self.calls) if callable(self.weight) else self.weight)
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight must be a number that is not negative, got {weight}")
        return weight

    def _penalty(
        self, weight: float, model: Model, x: Tensor, y: Tensor, x_unlabelled: Tensor
    ) -> Tensor | None:
        """Computes the penalty, nothing where NC is not trusted at all."""
        seen = []
        for name, given in (("x", x), ("x_unlabelled", x_unlabelled)):
            if not isinstance(given, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(given).__name__}")
            if given.device != x.device:
                raise ValueError(f"{name} must be on {x.device} like x, got {given.device}")
            seen.append(inputs(name, given, shape=self.nc.shape, dtype=self.nc.x_mean.dtype))
        X, X_te = seen
        self._move(X.device)
        H = self._predict("model(x)", model, x)
        classes = H.shape[-1] if self.nc.labels else None
        sizes: dict[str, Any] = {"outputs": H.shape[-1], "points": len(X)}
        Y = targets("y", y, labels=self.nc.labels, dtype=X.dtype, device=X.device, **sizes)
        X_tr, Y_tr = (X[None], Y[None]) if self._fixed is None else self._fixed
        if classes is not None and int(Y_tr.max()) >= classes:
            got = f"{classes} columns for labels up to {int(Y_tr.max())}"
            raise ValueError(f"model(x) must have a column for every label of y_tr, got {got}")
        with torch.autocast(X.device.type, enabled=False):
            trusted = self._trust(X_tr, Y_tr, classes) if self.safeguard else 1.0
        if not trusted:
            return None
        H_te = self._predict("model(x_unlabelled)", model, x_unlabelled, like=H)
        snapshot = Snapshot(X[None], Y[None], H[None], X_te[None], H_te[None])
        if self._fixed is not None and self.nc.head.sees_predictions:
            shown = X_tr.squeeze(0).to(x.dtype).reshape(-1, *x.shape[1:])
            H = self._predict("model(X_tr)", model, shown, like=H)
        encode = CachedEmbeddings(self.nc, fixed=self._fixed)
        regularizer = minibatch_penalty(self.nc, encode, floor=self.floor)
        h = cast("Learner", lambda _: H[None])  # its predictions at the context's points
        with torch.autocast(X.device.type, enabled=False):
            factor = safeguard_factor(self.nc, trusted)
            penalty = weight * factor * regularizer(h, snapshot).squeeze(0)
        if not penalty.isfinite():
            raise ValueError(f"targets and predictions must be smaller, got a penalty of {penalty}")
        return penalty

    def _move(self, device: torch.device) -> None:
        """Moves NC and its context to the device of the inputs, if they are elsewhere."""
        if self.nc.device != device:
            self.nc.to(device)
            self._fixed = self._fixed and tuple(tensor.to(device) for tensor in self._fixed)

    def _predict(self, name: str, model: Model, x: Tensor, like: Tensor | None = None) -> Tensor:
        """Returns predictions as NC sees them, (points, C)."""
        H = _ask(model, x, self.mode)
        if not isinstance(H, Tensor) or not H.is_floating_point():
            got = H.dtype if isinstance(H, Tensor) else type(H).__name__
            raise TypeError(f"{name} must be a tensor of real numbers, got {got}")
        check_dense(name, H)
        shape = tuple(H.shape)
        if not self.nc.labels and self.nc.outputs == 1 and H.ndim == 1:
            H = H.unsqueeze(1)
        C = self.outputs if like is None else like.shape[1]
        if H.ndim != 2 or 0 in shape or len(H) != len(x) or H.shape[1] != (C or H.shape[1]):
            raise ValueError(f"{name} must be ({len(x)}, {C or 'classes'}), got shape {shape}")
        H = H.to(self.nc.x_mean.dtype)
        if not H.isfinite().all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
        return H

    def _trust(self, X: Tensor, Y: Tensor, classes: int | None) -> float:
        """Returns trust, or reliance for tables, which the first calls measure."""
        wanted = TESTS if self._fixed is None else 1
        # A minibatch where nothing can be tested is an error, unless another could be.
        distinct = self.nc.labels and len(Y[0].unique()) == Y.shape[1]
        if self.tests < wanted and not (self.tests and distinct):
            found = float(proof(self.nc, X, Y, classes=classes))
            self.trust += (found - self.trust) / (self.tests + 1)
            self.tests += 1
            if self.tests == wanted and not self.trust:
                warnings.warn(UNTRUSTED, stacklevel=4)
        return self.trust


def _ask(model: Model, x: Tensor, mode: str) -> Any:
    """Returns what a model says in a mode, and keeps it as it was."""
    elsewhere = [] if x.device.type == "cpu" else [x.device]
    with torch.random.fork_rng(elsewhere, device_type=x.device.type if elsewhere else "cuda"):
        if not isinstance(model, nn.Module):
            return model(x)
        if mode == "eval" and any(module.training for module in model.modules()):
            return evaluation_copy(model, learns=True)(x)
        # Copies: what a pass writes is lost, and a later pass that trains may write to the
        # model's own without touching what gradients of this one need.
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        return functional_call(model, buffers, (x,)) if buffers else model(x)

"""Neural Complexity: predicts the generalization gap of learners it has never seen."""

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.losses import LOSSES, Gaussian
from neural_complexity.model.heads import DirectHead, PosteriorHead, SetNetwork, Sets
from neural_complexity.task import Task, check_sets

__all__ = ["Context", "NeuralComplexity"]

FORMAT = "neural-complexity"
VERSION = 1


@dataclass(frozen=True)
class Context:
    """Everything about B tasks that NC needs to judge any h on them."""

    Y_tr: Tensor  # (B, M, C)
    known: Sets | Gaussian  # what the head makes of it before it sees h


class NeuralComplexity(nn.Module):
    """NC: maps (X_tr, Y_tr, H_tr, X_te, H_te) to a predicted gap, whatever the order of the points.

    Args:
        inputs: Input features, D.
        outputs: Outputs, C.
        head: `"posterior"` (ours) believes p(y | x, S) and computes the expected loss of h in
            closed form; `"direct"` (the paper's) lets the network see (x, h(x)) and answer by
            itself.
        loss: The name of the loss whose gap is predicted.
        width: The width d of every layer.
        heads: Attention heads.
        encoder_layers: Linear layers of the encoder, n_enc.
        decoder_layers: Linear layers of the decoder, n_dec.
        query_skip: Whether the decoder also sees the test point's own embedding.
        observed_loss: Whether the direct head answers with a test loss, from which the observed
            training loss is subtracted, instead of with the gap itself. The posterior head always
            does.
        pool_first: Whether test points are averaged before decoding (direct head only).
        scale_by_width: Whether attention divides by the root of the whole width.
    """

    x_mean: Tensor  # (D,)
    x_scale: Tensor  # (D,)
    y_mean: Tensor  # (C,)
    y_scale: Tensor  # (C,)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        head: Literal["posterior", "direct"] = "posterior",
        loss: str = "squared_error",
        width: int = 128,
        heads: int = 4,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        query_skip: bool = True,
        observed_loss: bool = True,
        pool_first: bool = False,
        scale_by_width: bool = False,
    ) -> None:
        super().__init__()
        self.architecture: dict[str, Any] = {
            k: v for k, v in locals().items() if k not in ("self", "__class__")
        }
        for name in ("inputs", "outputs", "width", "heads", "encoder_layers", "decoder_layers"):
            if self.architecture[name] < 1:
                raise ValueError(f"{name} must be at least 1, got {self.architecture[name]}")
        if loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss}")
        if head not in ("posterior", "direct"):
            raise ValueError(f"head must be posterior or direct, got {head}")
        self.loss = LOSSES[loss]
        posterior = head == "posterior"
        if posterior and pool_first:
            raise ValueError(
                "pool_first must be off for the posterior head, which answers per point"
            )
        network = SetNetwork(
            inputs if posterior else inputs + outputs,
            outputs,
            2 * outputs if posterior else 1,
            width=width,
            heads=heads,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            query_skip=query_skip,
            pool_first=pool_first,
            scale_by_width=scale_by_width,
        )
        self.head = PosteriorHead(network) if posterior else DirectHead(network)
        self.observed_loss = observed_loss
        self.provenance: dict[str, Any] = {}  # what made the weights; saved with them
        for name, size in (("x", inputs), ("y", outputs)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))

    @classmethod
    def for_tasks(cls, task: Task, **architecture: Any) -> "NeuralComplexity":
        """Builds an untrained NC whose units fit a sample of tasks.

        Args:
            task: Some tasks; inputs and training targets give dimensions, centres and scales.
            architecture: Any other argument of the class.
        """
        nc = cls(task.X_tr.shape[-1], task.Y_tr.shape[-1], **architecture)
        for name, values in (("x", task.X_tr), ("y", task.Y_tr)):
            flat = values.flatten(0, -2)
            scale = flat.std(dim=0, correction=0)
            getattr(nc, f"{name}_mean").copy_(flat.mean(dim=0))
            # A constant feature has nothing to scale.
            getattr(nc, f"{name}_scale").copy_(torch.where(scale > 0, scale, 1.0))
        return nc

    def encode(self, X_tr: Tensor, Y_tr: Tensor, X_te: Tensor) -> Context:
        """Does all of NC's work that does not depend on h.

        Args:
            X_tr: Training inputs, (B, M, D).
            Y_tr: Training targets, (B, M, C).
            X_te: Test inputs, (B, N, D).

        Returns:
            What `points` needs to judge learners on these tasks.
        """
        sets = Sets(self._x(X_tr), self._y(Y_tr), self._x(X_te))
        return Context(Y_tr, self._believe(sets) if isinstance(self.head, PosteriorHead) else sets)

    def points(self, context: Context, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Predicts per test point its loss minus the learner's training loss.

        Args:
            context: From `encode`, for the same tasks.
            H_tr: Predictions on training inputs, (B, M, C).
            H_te: Predictions on test inputs, (B, N, C).

        Returns:
            One value per test point, (B, N); their mean is the predicted gap.
        """
        if isinstance(context.known, Gaussian):
            losses_te = self.loss.expected(H_te, context.known)  # (B, N)
        else:
            unit = self.y_scale.square().mean()  # of a loss
            answer: Tensor = self.head(context.known, self._y(H_tr), self._y(H_te))  # (B, N)
            if not self.observed_loss:
                return answer * unit
            # A loss is never negative: without this, learners run off to where NC promises one.
            losses_te = softplus(answer) * unit
        return losses_te - self.loss(H_tr, context.Y_tr).mean(dim=1, keepdim=True)

    def belief(self, X_tr: Tensor, Y_tr: Tensor, X_te: Tensor) -> Gaussian:
        """Gives the posterior head's own p(y | x, S) at the test points.

        Args:
            X_tr: Training inputs, (B, M, D).
            Y_tr: Training targets, (B, M, C).
            X_te: Test inputs, (B, N, D).

        Raises:
            ValueError: If the head is not the posterior one.
        """
        self.check(X_tr=X_tr, Y_tr=Y_tr, X_te=X_te)
        known = self.encode(X_tr, Y_tr, X_te).known
        if not isinstance(known, Gaussian):
            raise ValueError("belief needs the posterior head, got the direct head, which has none")
        return known

    def predict_points(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts for each test point its loss minus the training loss.

        Differentiable in H_tr and H_te.

        Args:
            X_tr: Training inputs, (B, M, D).
            Y_tr: Training targets, (B, M, C).
            H_tr: Predictions on training inputs, (B, M, C).
            X_te: Test inputs, (B, N, D).
            H_te: Predictions on test inputs, (B, N, C).

        Returns:
            One value per test point, (B, N).

        Raises:
            TypeError: If something is not a floating tensor of NC's own type.
            ValueError: If shapes disagree, a set is empty or a value is not finite.
        """
        self.check(X_tr=X_tr, Y_tr=Y_tr, H_tr=H_tr, X_te=X_te, H_te=H_te)
        return self.points(self.encode(X_tr, Y_tr, X_te), H_tr, H_te)

    def predict(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts the generalization gap, NC(h) of section 3.3, as (B,).

        The arguments and errors are those of `predict_points`, whose mean over test points this is.
        """
        return self.predict_points(X_tr, Y_tr, H_tr, X_te, H_te).mean(dim=1)

    def save(self, path: str | Path) -> None:
        """Writes weights, architecture, units and provenance to one file, atomically."""
        header = {
            "format": FORMAT,
            "version": str(VERSION),
            "architecture": json.dumps(self.architecture),
            "provenance": json.dumps(self.provenance),
        }
        write_tensors(Path(path), self.state_dict(), header)

    @classmethod
    def load(cls, path: str | Path) -> "NeuralComplexity":
        """Reads an NC from a safetensors file; runs no code from it.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, of another kind, or newer than this library.
        """
        tensors, header = read_tensors(Path(path))
        if header.get("format") != FORMAT:
            raise ValueError(f"{path} must be a saved NC, got a safetensors file of another kind")
        if header.get("version") != str(VERSION):
            raise ValueError(
                f"{path} must have format version {VERSION}, got {header.get('version')}; "
                "use a release of this library that knows it"
            )
        try:
            nc = cls(**json.loads(header["architecture"]))
            nc.load_state_dict(tensors)
            nc.provenance = json.loads(header["provenance"])
        except (KeyError, TypeError, RuntimeError, json.JSONDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{path} must hold a complete NC, got a damaged one ({reason})"
            ) from None
        return nc

    @classmethod
    def pretrained(cls, name: str) -> "NeuralComplexity":
        """Gives an NC that ships with the package.

        Args:
            name: Which one; `"sinusoid"` (posterior head) and `"sinusoid-direct"` (the paper's) are
                made by the `sinusoid` experiment at preset `cpu`.

        Raises:
            ValueError: If none of that name ships.
        """
        folder = resources.files("neural_complexity") / "pretrained"
        with resources.as_file(folder) as path:
            names = sorted(file.stem for file in path.glob("*.safetensors"))
            if name not in names:
                raise ValueError(f"name must be one of {', '.join(names)}, got {name}")
            return cls.load(path / f"{name}.safetensors")

    def _believe(self, sets: Sets) -> Gaussian:
        own: Gaussian = self.head(sets)
        mean = own.mean * self.y_scale + self.y_mean
        return Gaussian(mean, own.variance * self.y_scale.square())

    def _x(self, X: Tensor) -> Tensor:
        return (X - self.x_mean) / self.x_scale

    def _y(self, Y: Tensor) -> Tensor:
        return (Y - self.y_mean) / self.y_scale

    def check(self, **tensors: Tensor) -> None:
        """Refuses what NC cannot judge, before it gives a number that looks like an answer.

        Args:
            tensors: By name, as in `predict_points`.

        Raises:
            TypeError: If something is not a floating tensor of NC's own type.
            ValueError: If shapes disagree, a set is empty or a value is not finite.
        """
        check_sets(**tensors)
        for name, tensor in tensors.items():
            features = self.x_mean.numel() if name.startswith("X") else self.y_mean.numel()
            if tensor.ndim != 3 or tensor.shape[-1] != features:
                raise ValueError(
                    f"{name} must be (tasks, points, {features}), got shape {tuple(tensor.shape)}"
                )
            if tensor.dtype != self.x_mean.dtype:
                raise TypeError(f"{name} must be {self.x_mean.dtype} like NC, got {tensor.dtype}")
            if not tensor.isfinite().all():
                raise ValueError(f"{name} must be finite, got NaN or infinity")

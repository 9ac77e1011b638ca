"""NC as a regularizer of anything that Lightning trains; needs the extra `lightning`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.loop import NCRegularizer
from neural_complexity.seeding import stream
from neural_complexity.tasks.splits import Rounds

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        "Lightning must be installed for NCCallback, got no such package: "
        "pip install 'neural-complexity[lightning]'"
    ) from error

__all__ = ["NCCallback"]


class NCCallback(Callback):
    """Adds the penalty of `NCRegularizer` to the loss that `training_step` returns.

    The model predicts through its `forward`, on the inputs x of each minibatch (x, y) and on inputs
    without labels. The penalty is added in `on_before_backward`, right before the one backward pass
    of a step: so the gradients of both are accumulated, scaled, clipped and exchanged between
    processes together. It is logged as `nc_penalty`. Training that resumes from a checkpoint
    continues exactly if `unlabelled` is a tensor; a `DataLoader` starts over.

    Args:
        nc: The gap predictor; stays as it is.
        unlabelled: Inputs to judge the model on: a tensor, (points, D) or (points, channels,
            height, width), or a `DataLoader` of x, or of tuples that start with x; repeated as
            often as needed.
        batch: Points of a tensor that are judged at a step.
        seed: Decides their order, and what else `NCRegularizer` draws.
        options: Further arguments of `NCRegularizer`.

    Raises:
        TypeError: If something is of the wrong kind.
        ValueError: If something does not fit NC, or there are no inputs.
    """

    def __init__(
        self,
        nc: NeuralComplexity,
        unlabelled: Tensor | DataLoader[Any],
        *,
        batch: int = 64,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if not isinstance(unlabelled, Tensor | DataLoader):
            got = type(unlabelled).__name__
            raise TypeError(f"unlabelled must be a tensor or a DataLoader, got {got}")
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self.penalty = NCRegularizer(nc, seed=seed, **options)
        self.unlabelled = unlabelled
        if isinstance(unlabelled, Tensor):
            if not (unlabelled.ndim and len(unlabelled)):
                shape = tuple(unlabelled.shape)
                raise ValueError(f"unlabelled must be points, got a tensor of shape {shape}")
            rows = torch.Size((1, len(unlabelled)))
            self._places = Rounds(rows, batch, lambda i: stream(seed, "unlabelled", i))
        self._left: Iterator[Any] = iter(())  # of the loader
        self._batch: Any = None

    def on_train_batch_start(
        self, _: Trainer, module: LightningModule, batch: Any, *__: Any
    ) -> None:
        """Keeps the minibatch."""
        if not module.automatic_optimization:
            raise ValueError(
                "automatic_optimization must be on for NCCallback, got a module that optimizes by "
                "itself: call NCRegularizer in its training_step instead"
            )
        self._batch = batch

    def on_before_backward(self, trainer: Trainer, module: LightningModule, loss: Tensor) -> None:
        """Adds the penalty to the loss, in place, as Lightning takes no other loss from here."""
        # The loss is the quotient that Lightning makes for accumulation, or the product that it
        # makes for scaling: neither is needed for its own gradient, so autograd allows this.
        batch = self._batch if isinstance(self._batch, list | tuple) else ()
        if [isinstance(part, Tensor) for part in batch] != [True, True]:
            wanted = "pairs of tensors (x, y) for NCCallback"
            raise TypeError(f"minibatches must be {wanted}, got {type(self._batch).__name__}")
        (x, y), plugin = batch, trainer.precision_plugin
        # Where NC is not asked, no inputs are drawn for it, either.
        judged = plugin.convert_input(self._next() if self.penalty.weight_now() else x)
        with plugin.forward_context():
            penalty = self.penalty(module, x, y, judged.to(x.device))
        share = penalty / trainer.accumulate_grad_batches
        scaler = getattr(plugin, "scaler", None)
        loss.add_((share if scaler is None else scaler.scale(share)).to(loss))
        if not trainer.barebones:  # where logging is off
            module.log("nc_penalty", penalty.detach())

    def on_train_batch_end(self, *_: Any) -> None:
        """Releases the minibatch."""
        self._batch = None

    def state_dict(self) -> dict[str, Any]:
        """Returns what checkpoints save."""
        return self.penalty.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a checkpoint."""
        self.penalty.load_state_dict(state_dict)

    def _next(self) -> Tensor:
        """Returns the next inputs without labels."""
        if isinstance(self.unlabelled, Tensor):
            places = self._places(self.penalty.calls).squeeze(0)
            return self.unlabelled[places.to(self.unlabelled.device)]
        with torch.random.fork_rng(devices=[]):  # the order of the training points stays as it is
            batch = next(self._left, None)
            if batch is None:
                self._left = iter(self.unlabelled)
                batch = next(self._left, None)
        x = batch[0] if isinstance(batch, list | tuple) and batch else batch
        if not isinstance(x, Tensor):
            raise TypeError(f"unlabelled must give tensors, got {type(x).__name__}")
        return x

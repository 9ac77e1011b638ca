"""Trains the networks of a zoo, each until its training loss is the same."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neural_complexity.experiments.base.config import POSITIVE, Checked, Count
from neural_complexity.experiments.base.model_zoo import Group
from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import fit
from neural_complexity.losses import cross_entropy
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Rounds

__all__ = ["Stopping", "Trained", "train_group"]

Make = Callable[[], nn.Module]


@dataclass(frozen=True, kw_only=True)
class Stopping(Checked):
    """When a model is trained: at the first look at which its training loss is low enough.

    The nearer the loss is to the target, the more often it is looked at: models shall have the same
    training loss, not one below it.
    """

    target: Annotated[float, POSITIVE] = 0.2  # Mean cross-entropy on the training points.
    every: Count = 100  # Updates between two looks at most; dropout and augmentation are off then.
    looks: Count = 16  # Of a round over all points, at most.
    steps: Count = 12_000  # The most updates: a model that needs more is left out.

    def wait(self, before: Tensor, loss: Tensor, apart: Tensor, steps: int) -> Tensor:
        """Returns updates until the next look at each of n models, (n,).

        Half of those after which the target will be reached, if the logarithm of the loss goes on
        to fall as it did; and not more than a round over all points.

        Args:
            before: The losses at the last look, (n,); NaN if there was none.
            loss: Those of now.
            apart: The updates in between, (n,).
            steps: Of a round over all points.
        """
        rate = (before / loss).log() / apart
        left = torch.where(rate > 0, (loss / self.target).log() / rate, math.inf)
        most = (2 * apart).clamp(max=min(self.every, steps))
        return (left / 2).ceil().clamp(min=max(1, steps // self.looks)).minimum(most).long()


@dataclass(frozen=True)
class Trained:
    """B models as they began and as they ended."""

    initial: BatchedLearner
    h: BatchedLearner
    steps: Tensor  # (B,)
    loss_tr: Tensor  # (B,), without dropout and augmentation
    reached: Tensor  # (B,), whether the target was

    def __getitem__(self, rows: Tensor) -> "Trained":
        told = self.steps[rows], self.loss_tr[rows], self.reached[rows]
        return Trained(_choose(self.initial, rows), _choose(self.h, rows), *told)

    def tensors(self) -> dict[str, Tensor]:
        """Returns all of it by name; see `from_tensors`."""
        both = {"initial": self.initial, "h": self.h}
        states = {f"{k}/{name}": t for k, own in both.items() for name, t in own.state().items()}
        return states | {name: vars(self)[name] for name in ("steps", "loss_tr", "reached")}

    @classmethod
    def from_tensors(cls, template: nn.Module, tensors: dict[str, Tensor]) -> "Trained":
        """Undoes `tensors`; the template is a network of the group."""
        initial, h = (
            {name: tensors[f"{k}/{name}"] for name, _ in template.named_parameters()}
            for k in ("initial", "h")
        )
        told = tensors["steps"], tensors["loss_tr"], tensors["reached"]
        both = BatchedLearner(template, initial).eval(), BatchedLearner(template, h).eval()
        return cls(*both, *told)


def train_group(
    group: Group, make: Make, X: Tensor, Y: Tensor, stopping: Stopping, *, seed: int, name: str
) -> Trained:
    """Trains the models of a group, each until its training loss is low enough.

    Args:
        group: The models.
        make: Builds one of the networks.
        X: Training inputs of all of them, (M, D).
        Y: Training labels of each, (B, M).
        stopping: When a model is trained.
        seed: Draws initial networks, the same ones for each architecture; with the name of what
            they are trained for the order of points, the same for each batch size; and with that of
            the group dropout and augmentation.
        name: What they are trained for.
    """
    B, batch = len(group), int(group.shared("batch"))
    # Models that are compared share what they can: initial parameters, and with these the order of
    # points and the noise. It leaves less to luck where one hyper-parameter alone changes.
    h = _choose(stack(make, 1, stream(seed, "initial", group.architecture)), torch.zeros(B).long())
    initial, ended = (_choose(h, torch.arange(B)) for _ in range(2))
    order = torch.Size((1, Y.shape[1]))
    rounds = Rounds(order, batch, lambda i: stream(seed, name, batch, "order", i))
    steps, due = torch.zeros(B).long(), torch.ones(B).long()  # of the last look, and of the next
    losses, left, done = torch.full((B,), torch.nan), torch.arange(B), 0
    with seeded(seed, name, group.name, "noise"):
        while len(left):
            now = min(int(due[left].min()), stopping.steps)
            _train(h, group[left], partial(_batch, rounds, X, Y[left], done), now - done)
            done, place = now, (due[left].clamp(max=stopping.steps) <= now).nonzero().squeeze(1)
            some, seen = left[place], _choose(h, place).eval()
            loss = _loss(seen, X, Y[some]).cpu().to(losses)
            wait = stopping.wait(losses[some], loss, done - steps[some], rounds.steps)
            steps[some], losses[some], due[some] = done, loss, done + wait
            for key, kept in ended.state().items():
                kept.data[some] = seen.state()[key].detach()
            # A loss that is no number does not go on, either.
            go_on = torch.ones(len(left), dtype=torch.bool)
            go_on[place] = (loss > stopping.target) & (done < stopping.steps)
            left, h = left[go_on], _choose(h, go_on.nonzero().squeeze(1))
    return Trained(initial.eval(), ended.eval(), steps, losses, losses <= stopping.target)


def _batch(rounds: Rounds, X: Tensor, Y: Tensor, done: int, step: int) -> Task:
    """Returns the points of a step of n models, with their own labels, (n, M)."""
    place = rounds(done + step)[0]  # (batch,)
    x, y = X[place].expand(len(Y), -1, -1), Y[:, place]
    return Task(x, y, x[:, :1], y[:, :1])


def _train(h: BatchedLearner, group: Group, batches: Callable[[int], Task], steps: int) -> None:
    """Trains models by so many updates, in place."""
    noise = group.columns["augmentation"].to(next(h.parameters()))[:, None, None]
    how: dict[str, Any] = {"augment": partial(_add_noise, noise) if noise.any() else None}
    rates, decays = group.columns["lr"], group.columns["weight_decay"]
    descent = partial(_Descent, rates=rates, decays=decays)
    fit(h.train(), batches, steps=steps, loss=cross_entropy, lr=1.0, optimizer=descent, **how)


def _choose(h: BatchedLearner, rows: Tensor) -> BatchedLearner:
    """Returns copies of some of the models."""
    state = {name: t.detach()[rows] for name, t in h.state().items()}
    return BatchedLearner(h.template, state).train(h.training)


class _Descent(Optimizer):
    """Plain SGD of B models, each with its own learning rate and weight decay."""

    def __init__(self, params: Any, lr: float, *, rates: Tensor, decays: Tensor) -> None:
        super().__init__(params, {"lr": lr})
        self.rates, self.decays = rates, decays  # (B,) each

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Moves all parameters, (B, ...), by their gradients; closures are not looked at."""
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                shape = (-1, *[1] * (p.ndim - 1))
                rate, decay = (t.to(p).view(shape) for t in (self.rates, self.decays))
                p.mul_(1 - group["lr"] * rate * decay).addcmul_(p.grad, -group["lr"] * rate)


def _add_noise(scale: Tensor, X: Tensor) -> Tensor:
    return X + scale * torch.randn_like(X[:1])


@torch.no_grad()
def _loss(h: BatchedLearner, X: Tensor, Y: Tensor) -> Tensor:
    """Returns the mean loss of each model on points that all share, (B,)."""
    return cross_entropy(h(X.expand(len(Y), *X.shape)), Y).mean(dim=1)

"""NC on tasks too large to be seen at once, whose inputs are told by number."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.losses import Belief, join
from neural_complexity.model.heads import Sets
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = [
    "Beliefs",
    "Embeddings",
    "Known",
    "believe",
    "by_embeddings",
    "embed",
    "predict_in_parts",
    "predict_losses",
    "show",
]

PART = 2048  # inputs at a time: bounds memory

Known = Callable[[Task | Snapshot], Context]  # what NC makes of points given by number


@dataclass(frozen=True)
class Embeddings:
    """What a version of NC's image encoder makes of inputs, each embedded once."""

    numbers: Tensor  # (P,), in order
    table: Tensor  # (P, features)

    def __call__(self, numbers: Tensor) -> Tensor:
        """Gives embeddings of numbers (...), as (..., features).

        Raises:
            ValueError: If some were not embedded.
        """
        return self.table[_places(self.numbers, numbers)]


@torch.no_grad()
def embed(nc: NeuralComplexity, look_up: Callable[[Tensor], Tensor], numbers: Tensor) -> Embeddings:
    """Embeds inputs, each of them once however often it is named.

    Args:
        nc: The gap predictor as it is now.
        look_up: Gives the inputs of numbers.
        numbers: Which inputs, of any shape.

    Raises:
        ValueError: If the inputs are of another size than NC was made for.
    """
    different = numbers.unique()
    shape = tuple(look_up(different[:1]).shape[1:])
    if shape != nc.shape:
        raise ValueError(f"inputs must be of NC's size, {nc.shape}, got {shape}")
    table = torch.cat([nc.embed(look_up(part)) for part in different.split(PART)])
    return Embeddings(different, table)


def by_embeddings(nc: NeuralComplexity, embeddings: Callable[[Tensor], Tensor]) -> Known:
    """Lets NC look at points given by number, the few that it sees at a time.

    Args:
        nc: The gap predictor.
        embeddings: Of all inputs that it may be asked about; or `nc.embed`, if points are not given
            by number.
    """

    @torch.no_grad()
    def known(points: Task | Snapshot) -> Context:
        classes = points.H_te.shape[-1] if isinstance(points, Snapshot) else None
        E_tr, E_te = embeddings(points.X_tr), embeddings(points.X_te)
        return nc.context(E_tr, points.Y_tr, E_te, classes=classes)

    return known


@dataclass(frozen=True)
class Beliefs:
    """What the posterior head believes about inputs of B tasks, whatever h is.

    A step of a learner then costs no more of NC than looking up what it believes.
    """

    numbers: Tensor  # (B, n), in order
    belief: Belief  # about these, (B, n, C)

    def __call__(self, points: Task | Snapshot) -> Context:
        """Gives the context of points given by number.

        Raises:
            ValueError: If there are no beliefs about some of the test points.
        """
        place = _places(self.numbers, points.X_te)  # (B, N)
        row = torch.arange(len(place), device=place.device)[:, None]
        return Context(points.Y_tr, self.belief.apply(lambda values: values[row, place]))


def _places(known: Tensor, numbers: Tensor) -> Tensor:
    """Finds numbers, (..., n), in ordered ones, (P,) or (..., P)."""
    place = torch.searchsorted(known, numbers.contiguous())
    # Without a look at what is there, the next larger number would answer for one that is missing.
    place = place.clamp(max=known.shape[-1] - 1)
    found = known[place] if known.ndim == 1 else known.gather(-1, place)
    if not torch.equal(found, numbers):
        raise ValueError(
            f"inputs must be among the {known.shape[-1]} that NC has looked at, got others: "
            f"{numbers[found != numbers][:3].tolist()}"
        )
    return place


def show(task: Task, shown: int, generator: torch.Generator) -> Task:
    """Takes some training points of each task at random, all of them if there are fewer.

    Args:
        task: The tasks as numbers, (B, m) and (B, n).
        shown: How many.
        generator: The source of randomness, on the CPU.
    """
    keys = torch.rand(task.X_tr.shape, generator=generator)
    few = keys.topk(min(shown, keys.shape[1]), dim=1).indices.to(task.X_tr.device)
    row = torch.arange(len(task), device=few.device)[:, None]
    return Task(task.X_tr[row, few], task.Y_tr[row, few], task.X_te, task.Y_te)


@torch.no_grad()
def believe(
    nc: NeuralComplexity, embeddings: Embeddings, task: Task, *, classes: int | None = None
) -> Beliefs:
    """Lets the posterior head look at tasks once.

    Args:
        nc: The gap predictor.
        embeddings: Of the tasks' inputs.
        task: The tasks as numbers, with as many training points as NC should see at once; the test
            targets are not looked at.
        classes: How many classes labels are of; NC's own number if `None`.

    Raises:
        ValueError: If NC has no beliefs.
    """
    E_tr = embeddings(task.X_tr)
    numbers = task.X_te.sort(dim=1).values
    parts: list[Belief] = []
    for part in numbers.split(PART, dim=1):
        known = nc.context(E_tr, task.Y_tr, embeddings(part), classes=classes).known
        if isinstance(known, Sets):
            raise ValueError("a belief needs the posterior head, got the direct head")
        parts.append(known)
    return Beliefs(numbers, join(parts))


@torch.no_grad()
def predict_in_parts(
    nc: NeuralComplexity, known: Known, snapshot: Snapshot, *, M: int, N: int
) -> Tensor:
    """Predicts the gap of learners on large tasks as the mean over parts that NC can see.

    Args:
        nc: The gap predictor.
        known: What it makes of points.
        snapshot: B learners on all points, by number.
        M: Training points of a part.
        N: Test points of a part.

    Returns:
        Predicted gaps, (B,).
    """
    test = torch.arange(snapshot.X_te.shape[1], device=snapshot.X_te.device).split(N)
    train = torch.arange(snapshot.X_tr.shape[1], device=snapshot.X_tr.device).split(M)
    total = snapshot.H_te.new_zeros(len(snapshot))
    for i, te in enumerate(test):
        tr = train[i % len(train)]
        part = Snapshot(
            snapshot.X_tr[:, tr],
            snapshot.Y_tr[:, tr],
            snapshot.H_tr[:, tr],
            snapshot.X_te[:, te],
            snapshot.H_te[:, te],
        )
        # Only the test points are cut: the training loss is that of all training points.
        total += predict_losses(nc, known(part), part.H_tr, part.H_te).sum(dim=1)
    loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)
    return total / snapshot.X_te.shape[1] - loss_tr


def predict_losses(nc: NeuralComplexity, context: Context, H_tr: Tensor, H_te: Tensor) -> Tensor:
    """Predicts the loss of each test point itself, whatever the other training points cost.

    Args:
        nc: The gap predictor.
        context: What it makes of the points.
        H_tr: Predictions on the training points that NC sees, (B, M, C).
        H_te: Predictions on test points, (B, N, C).

    Returns:
        One value per test point, (B, N).
    """
    loss_tr = nc.loss(H_tr, context.Y_tr).mean(dim=1, keepdim=True)  # (B, 1)
    return nc.points(context, H_tr, H_te) + loss_tr

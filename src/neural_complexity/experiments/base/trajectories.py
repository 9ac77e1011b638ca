"""Learners of one large dataset on their way, and the NCs that look at them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.one_dataset import LargeConfig, SplitTraining, World
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.training import Head
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Regularizer
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.meta.scores import (
    Estimate,
    correlation,
    estimate,
    mean_absolute_error,
    r_squared,
)
from neural_complexity.model.heads import PosteriorHead
from neural_complexity.model.indexed import (
    Embeddings,
    Known,
    believe,
    by_embeddings,
    embed,
    predict_in_parts,
    show,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty_by_number
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches

__all__ = [
    "NC_METHODS",
    "PLAIN",
    "Judge",
    "arrange",
    "by_size",
    "chunks",
    "fit_rows",
    "in_chunks",
    "join",
    "learn",
    "outputs",
    "run_seed",
    "subsets",
]

PLAIN = "cross-entropy"
# By name: whose NC, and whether it judges on the test images.
NC_METHODS: dict[str, tuple[Head, bool]] = {
    f"NC {head}, {mode}": (head, mode == "transductive")
    for head in HEADS
    for mode in ("transductive", "inductive")
}

PART = 2000  # points that all learners predict at a time: bounds memory
SCORES = {"R2": r_squared, "correlation": correlation, "MAE": mean_absolute_error}


@dataclass(frozen=True)
class Judge:
    """An NC before one dataset, whose images it has embedded."""

    nc: NeuralComplexity
    training: SplitTraining
    embeddings: Embeddings | None
    shown: int
    seed: int

    @classmethod
    def of(
        cls,
        nc: NeuralComplexity,
        head: Head,
        config: LargeConfig,
        world: World,
        *,
        embeddings: Embeddings | None = None,
        tasks: Sequence[Task] = (),
    ) -> "Judge":
        """Lets NC look at images once.

        Args:
            nc: The gap predictor.
            head: Its head.
            config: The settings.
            world: The dataset.
            embeddings: What its image encoder makes of all images, if that is at hand.
            tasks: What it will be asked about; anything if there are none.
        """
        judge = cls(nc, getattr(config, head), embeddings, config.shown, config.seed)
        if embeddings is not None:
            return judge
        numbers = [torch.cat([world.train, world.test])]
        if tasks:
            seen = [judge.seen(task) for task in tasks]
            numbers = [part.flatten() for task in seen for part in (task.X_tr, task.X_te)]
        own = embed(nc, world.dataset.look_up, torch.cat(numbers))
        return replace(judge, embeddings=own)

    def seen(self, task: Task) -> Task:
        """Gives what NC sees of tasks at once: the posterior head sees some training points."""
        if isinstance(self.nc.head, PosteriorHead):
            return show(task, self.shown, stream(self.seed, "shown"))
        return task

    def known(self, task: Task) -> Known:
        """Gives what NC makes of points of tasks."""
        assert self.embeddings is not None
        if isinstance(self.nc.head, PosteriorHead):
            return believe(self.nc, self.embeddings, self.seen(task))
        return by_embeddings(self.nc, self.embeddings)

    def penalty(self, task: Task, *, weight: float, floor: float) -> Regularizer:
        """Gives NC as a regularizer of learners of tasks."""
        return nc_penalty_by_number(self.nc, self.known(task), weight=weight, floor=floor)

    def gaps(self, known: Known, snapshot: Snapshot) -> Tensor:
        """Predicts the gap of learners from their predictions on all points, (B,)."""
        posterior = isinstance(self.nc.head, PosteriorHead)
        M, N = (snapshot.X_tr.shape[1], PART) if posterior else (self.training.M, self.training.N)
        return predict_in_parts(self.nc, known, snapshot, M=M, N=N)


@torch.no_grad()
def outputs(h: BatchedLearner, numbers: Tensor) -> Tensor:
    """Gives predictions on many points, (B, n, C)."""
    return torch.cat([h(part) for part in numbers.split(PART, dim=1)], dim=1)


def learn(
    recipe: Recipe,
    config: LargeConfig,
    task: Task,
    judged: Task,
    *,
    seed: int,
    regularizer: Regularizer | None = None,
    judges: dict[str, Judge] | None = None,
    visits: Sequence[int] = (),
    held: Task | None = None,
    keep: bool = False,
) -> dict[str, Tensor]:
    """Trains learners of large tasks by minibatches and looks at them on their way.

    Args:
        recipe: How they learn.
        config: The settings.
        task: What they learn from; its test inputs are what a regularizer sees without labels.
        judged: The points that losses and gaps are measured on.
        seed: Decides the initial learners, which are the same for every method, and the order of
            points.
        regularizer: See `fit`.
        judges: NCs that predict the gap.
        visits: After how many updates to look; only at the end if empty.
        held: Further test points on which the error is measured.
        keep: Whether to keep the predictions on the judged points.

    Returns:
        `loss_tr`, `loss_te`, `error`, `gap`, `error on held` and `predicted/NAME`, each
        (looks, B), the numbers of updates at the looks, `step`, and, if kept, `H_tr` and `H_te`,
        (looks, B, points, C).
    """
    seen: dict[str, list[Tensor]] = {}
    knowns = {name: judge.known(judged) for name, judge in (judges or {}).items()}

    def visit(step: int, h: BatchedLearner) -> None:
        snapshot = Snapshot(
            judged.X_tr,
            judged.Y_tr,
            outputs(h, judged.X_tr),
            judged.X_te,
            outputs(h, judged.X_te),
        )
        found = {
            "step": torch.tensor(step),
            "loss_tr": cross_entropy(snapshot.H_tr, judged.Y_tr).mean(dim=1),
            "loss_te": cross_entropy(snapshot.H_te, judged.Y_te).mean(dim=1),
            "error": zero_one(snapshot.H_te, judged.Y_te).mean(dim=1),
            "gap": gap(cross_entropy, snapshot, judged.Y_te),
        }
        if held is not None:
            found["error on held"] = zero_one(outputs(h, held.X_te), held.Y_te).mean(dim=1)
        if keep:
            found |= {"H_tr": snapshot.H_tr, "H_te": snapshot.H_te}
        for name, judge in (judges or {}).items():
            found[f"predicted/{name}"] = judge.gaps(knowns[name], snapshot)
        for name, values in found.items():
            seen.setdefault(name, []).append(values)

    points = {"M": config.batch, "N": config.unlabelled_batch}
    recipe.train(
        Minibatches(task, **points, seed=stream(seed, "order").initial_seed()),
        stream(seed, "learners"),
        regularizer=regularizer,
        schedule=partial(_rising, config.ramp) if config.ramp else None,
        visit=visit,
        visits={*visits, recipe.steps},
    )
    return {name: torch.stack(values) for name, values in seen.items()}


def _rising(ramp: float, progress: float) -> float:
    return min(1.0, progress / ramp)


def arrange(
    config: LargeConfig, world: World, judges: dict[str, Judge], method: str, runs: int
) -> tuple[Task, Task, Regularizer | None]:
    """Gives what learners of the whole dataset learn from, are judged on, and are regularized by.

    Args:
        config: The settings.
        world: The dataset.
        judges: NCs by head.
        method: One of `NC_METHODS`, or any other, without NC.
        runs: How many learners.
    """
    head, transductive = NC_METHODS.get(method, (None, True))
    train, test = (world.train, world.test) if transductive else (world.pool, world.held)
    task = world.task(train, test, runs)
    # The training loss is that of images that the learner learns from, not of held-out ones.
    judged = world.task(train[: config.judged], world.test, runs)
    if head is None:
        return task, judged, None
    return task, judged, judges[head].penalty(task, weight=config.weight, floor=config.floor)


def run_seed(config: LargeConfig, first: int) -> int:
    """Gives the seed of learners of the whole dataset, the same for every method."""
    return stream(config.seed, "runs", first).initial_seed()


def chunks(config: LargeConfig) -> list[tuple[int, int]]:
    """Gives the first of the learners that are trained together, and how many they are.

    Convolutions of several learners are faster one by one, products of matrices at once.
    """
    if config.learner == "MLP":
        return [(0, config.runs)]
    return [(run, 1) for run in range(config.runs)]


def in_chunks(
    config: LargeConfig,
    pieces: Pieces,
    name: str,
    work: Callable[[int, int], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Does the learners of a method, as one piece or as several, and joins what they give.

    Args:
        config: The settings.
        pieces: Does the pieces.
        name: Names the method.
        work: Trains learners from the first and the number of them, see `learn`.
    """
    parts = [
        pieces.do(
            name if len(chunks(config)) == 1 else f"{name}, run {first}",
            partial(work, first, runs),
        )
        for first, runs in chunks(config)
    ]
    return join(parts)


def join(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Puts what `learn` gave for several learners side by side."""
    return {
        key: torch.cat([p[key] for p in parts], dim=1) if key != "step" else parts[0][key]
        for key in parts[0]
    }


def by_size(
    config: LargeConfig, world: World, sizes: Sequence[int]
) -> dict[int, tuple[Task, Task]]:
    """Gives held-out splits of each size: what learners learn from, and what they are judged on.

    Their validation points are the images that no NC was trained on.
    """
    B = config.eval_tasks
    return {
        size: subsets(
            config, world, world.pool, world.held, size, B, stream(config.seed, "sizes", size)
        )
        for size in sizes
    }


def subsets(
    config: LargeConfig,
    world: World,
    source: Tensor,
    test: Tensor,
    size: int,
    copies: int,
    generator: torch.Generator,
) -> tuple[Task, Task]:
    """Gives tasks with random training sets: what learners learn from, and are judged on.

    Args:
        config: The settings.
        world: The dataset.
        source: Numbers of the images to draw from.
        test: Numbers of the test images.
        size: Training images of each.
        copies: How many tasks.
        generator: The source of randomness, on the CPU.
    """
    if size > len(source):
        raise ValueError(f"sizes must be at most the {len(source)} images there are, got {size}")
    keys = torch.rand(copies, len(source), generator=generator)
    chosen = source[keys.topk(size, dim=1).indices.to(source.device)]
    Y = world.dataset.labels.to(chosen.device)
    test = test.expand(copies, -1)
    judged = chosen[:, : config.judged]
    return Task(chosen, Y[chosen], test, Y[test]), Task(judged, Y[judged], test, Y[test])


def fit_rows(
    name: str,
    config: LargeConfig,
    head: str,
    where: str,
    results: Sequence[dict[str, Tensor]],
    *,
    independent: bool = True,
) -> list[Row]:
    """How well an NC foretells the gap, at the end of learners and all the way.

    Args:
        name: The name of the experiment.
        config: Its settings.
        head: Which NC.
        where: What the settings of the rows start with.
        results: What `learn` gave for several kinds of learners.
        independent: Whether the learners are: else there is no interval.
    """
    rows = []
    for setting, looks in (("endpoints", slice(-1, None)), ("all the way", slice(1, None))):
        predicted, true = (
            torch.cat([result[key][looks].flatten() for result in results])
            for key in (f"predicted/{head}", "gap")
        )
        for metric, score in SCORES.items():
            value = estimate(score, predicted, true)
            if setting != "endpoints" or not independent:  # a learner's looks never are
                value = Estimate(value.value, None, value.n)
            rows.append(
                score_row(name, config.seed, f"NC {head}", f"{where}{setting}", metric, value)
            )
    return rows

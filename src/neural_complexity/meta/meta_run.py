"""A run of `meta_learn`: its plan, its tasks, those that NC never sees, its learners and its NC."""

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import Affine, image_mlp, mlp
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.meta.bank import Collection
from neural_complexity.meta.collect import Collector, SplitCollector, TaskCollector, log_steps
from neural_complexity.meta.executor import CollectionQueue
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.families import check_sizes
from neural_complexity.tasks.splits import ArrayStore, Minibatches, Splits
from neural_complexity.workspace import Workspace, fingerprint, users_code

__all__ = ["FINISHED", "Learner", "MetaRun", "Part", "Plan", "TaskList", "Tasks"]
__all__ += ["make_plan", "make_recipe", "seconds"]

Part = Literal["validation", "report", "calibration"]
PARTS: tuple[Part, ...] = ("validation", "report")  # of points, or tasks, that are held out
Tasks = Splits | TaskFamily | Task  # what `meta_learn` is given
Learner = Callable[[], nn.Module] | Recipe | None
Scaling = tuple[Tensor, Tensor]  # a scale and a shift
STEPS = 300  # of a learner of which only the network is given
FINISHED = 2  # of so many held-out learners, the first is trained to the end
SHARES = (0.1, 0.2)  # of a dataset, that are held out to choose by and to report on
BATCH, LOOKS = 32, 12  # training points of a learner's step and times it is seen, on splits
EXAMPLES = 64  # tasks that NC takes its units from
# The sizes of NC for labels and for real targets; every field can be given another value.
FOR_LABELS: dict[str, Any] = {"width": 96, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
FOR_REALS: dict[str, Any] = {"width": 128, "heads": 4}
CLIP = 3.0  # features that hardly ever change would tell points apart by themselves
UNITS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
# Shares of the budget; what is left goes to setting up and to saving.
TRAINING, REPORT, CHOICE = 0.6, 0.2, 0.08
# The least and the most of a plan.
LIMITS = {"iterations": (2, 1000), "learners": (2, 400), "chosen_by": (2, 48)}
HELPINGS = 20  # iterations that few updates are divided among


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of `meta_learn`; the same plan gives the same NC on any machine."""

    iterations: int  # how often learners are trained for the bank
    updates: int  # of NC, after each time
    learners: int = LIMITS["learners"][1]  # held-out ones that the report is about, at least
    chosen_by: int = LIMITS["chosen_by"][1]  # others, by which the best NC is chosen, at least
    lag: int = 0  # how many iterations ahead learners are trained, by an executor

    def __post_init__(self) -> None:
        check_sizes(**{name: size for name, size in asdict(self).items() if name != "lag"})


def seconds(budget: str | float) -> float:
    """Returns a positive time in seconds: a number, or text such as "90s", "10min" or "1.5h"."""
    value = math.nan
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", budget.lower())
        value = float(found[1]) * UNITS.get(found[2], math.nan) if found else math.nan
    elif isinstance(budget, int | float) and not isinstance(budget, bool):
        value = float(budget)
    if not 0 < value < math.inf:
        wanted = 'a positive time such as "30s", "10min" or "2h"'
        raise ValueError(f"budget must be {wanted}, got {budget!r}")
    return value


def make_plan(
    budget: float, *, collecting: float, updating: float, learner: float, most_updates: float
) -> Plan:
    """Divides a budget by what a collection, an update of NC and a held-out learner take.

    All are in seconds. NC gets as much time as the learners it learns from: either alone would be
    wasted. Some of the budget may be left where more than `most_updates` of NC in all would only
    learn the data by heart.
    """
    updates = min(200, max(10, round(collecting / updating)))
    # Many small helpings rather than a few large ones, where there are not many updates.
    if most_updates < updates * HELPINGS:
        updates = max(1, round(most_updates / HELPINGS))
    iterations = TRAINING * budget / (collecting + updates * updating)
    wanted = {"iterations": min(iterations, most_updates / updates)}
    wanted |= {"learners": REPORT * budget / learner, "chosen_by": CHOICE * budget / learner}
    own = {n: min(most, max(least, round(wanted[n]))) for n, (least, most) in LIMITS.items()}
    return Plan(updates=updates, **own)


@dataclass(frozen=True, eq=False)
class TaskList:
    """Tasks that a user has, as a family: drawn from without replacement as far as they go."""

    task: Task

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` of the tasks."""
        times = -(-batch // len(self.task))
        order = [torch.randperm(len(self.task), generator=generator) for _ in range(times)]
        return self.task[torch.cat(order)[:batch]]


class MetaRun:
    """All that is settled before NC learns, with what trains learners for it and held-out ones.

    Of a dataset that is split, points are held out. NC is reported on learners of points that it
    knows, and on test points that it does not. It is calibrated on learners of points that it does
    not know either, on which it is further off: a bound must hold for somebody else's points.
    `fields` are of NC's architecture, and all else is what `meta_learn` is given.
    """

    def __init__(
        self,
        tasks: Tasks,
        learner: Learner,
        seed: int,
        device: str,
        fields: dict[str, Any],
        executor: Executor | None = None,
    ) -> None:
        self.seed, self.device, self.executor = seed, device, executor
        # The tasks to learn from, those held out (families, or indices of points), and how many
        # training points a held-out learner on a split has at most.
        self.family, self.held_out, self.largest = _hold_out(tasks, seed)
        self.group = cache(self._group)  # what planning has trained is not trained again
        example = self.family.sample(EXAMPLES, stream(seed, "units")).loaded()
        labels = not example.Y_tr.is_floating_point()
        if isinstance(tasks, Splits):
            own = tasks.store
            outputs = own.outputs if isinstance(own, ArrayStore) else int(own.labels.max()) + 1
        elif labels:
            outputs = int(torch.stack([example.Y_tr.max(), example.Y_te.max()]).max()) + 1
        else:
            outputs = example.Y_tr.shape[-1]
        self.recipe = make_recipe(learner, example, outputs)
        sizes = {"outputs": outputs, "clip": CLIP, **(FOR_LABELS if labels else FOR_REALS)}
        if example.X_tr.ndim == 5:
            del sizes["clip"]  # the pixels of an image share one scale
            least = min(example.X_tr.shape[-2:])
            sizes |= {"channels": 32, "image_layers": min(3, max(1, int(math.log2(least))))}
        with seeded(seed, "weights"):
            self.nc = NeuralComplexity.for_tasks(example, **{**sizes, **fields}).to(device)
        # All that decides the result but the plan. Of a user's own family the tasks say more than
        # its name does, and of a learner the network and the code.
        with seeded(seed, "network"):
            network = self.recipe.make()
        layers = re.sub(" at 0x[0-9a-f]+", "", repr(network))
        code = users_code(self.family, self.recipe, network)
        known = self.recipe, layers, code, self.nc.architecture, seed, example.X_tr, example.Y_tr
        self.fingerprint = fingerprint(self.family, self.held_out, self.largest, *known)
        self.together = 8 if isinstance(tasks, Splits) else 64  # learners that run at once
        h = stack(self.recipe.make, 2, stream(0, "probe"))
        try:
            torch.autograd.grad(h(example.X_tr[:2]).square().sum(), list(h.parameters()))
        except RuntimeError:  # what vmap cannot do: branch on values, or change a buffer in place
            self.together = 1

    def learners(self, part: Part, least: int, told: ProgressCallback | None) -> list[Collection]:
        """Trains held-out learners, at least so many, or one for each task that there is."""
        start, groups, many = time.perf_counter(), [], self.together
        wanted = -(-min(least, self._limit(part)) // many)
        for done in range(1, wanted + 1):
            groups.append(self.group(part, done - 1))
            if told is not None:
                spent = time.perf_counter() - start
                told(f"learners for {part}", done * many, wanted * many, spent, {})
        return groups

    def _limit(self, part: Part) -> int:
        family = self.held_out.get(part)
        return len(family.task) if isinstance(family, TaskList) else sys.maxsize

    def _group(self, part: Part, index: int) -> Collection:
        """Trains the held-out learners that run at once, one for each task.

        Every other is recorded when it is trained, the others at a step of their own before; all
        are when they are trained, for a calibration.
        """
        ended = part == "calibration"
        held_out, seen = self.held_out["report" if ended else part], list[Snapshot]()
        tasks, names = min(self.together, self._limit(part)), ("tasks", "learners", "moments")
        drawing, learning, moments = (stream(self.seed, part, name, index) for name in names)
        if isinstance(held_out, Tensor):
            assert isinstance(self.family, Splits)
            share = torch.rand((), generator=stream(self.seed, part, "size", index)).item()
            draw = self._unseen if ended else self._known
            points = self.family.task(*draw(held_out, tasks, share, drawing)).to(self.device)
            task = points.loaded()

            def visit(_: int, h: BatchedLearner) -> None:
                seen.append(take_snapshot(h, task, joined=not h.has_modes).detach())

            batches = Minibatches(points, M=BATCH, N=1, seed=self.seed + index)
            visits = set(log_steps(self.recipe.steps, LOOKS))
            self.recipe.train(batches, learning, visit=visit, visits=visits)
        else:
            task = held_out.sample(tasks, drawing).to(self.device).loaded()
            self.recipe.train(task, learning, observe=lambda _, snapshot: seen.append(snapshot))
        step = torch.randint(len(seen), (len(task),), generator=moments).to(self.device)
        # Users mostly ask about learners trained to the end.
        step[:: 1 if ended else FINISHED] = len(seen) - 1
        row, both = torch.arange(len(step), device=self.device), ("H_tr", "H_te")
        H = {name: torch.stack([getattr(s, name) for s in seen])[step, row] for name in both}
        return replace(seen[0], **H), task.Y_te

    def _known(
        self, held_out: Tensor, tasks: int, share: float, drawing: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Draws training points that teach NC, (tasks, m), and test points, (tasks, n)."""
        assert isinstance(self.family, Splits)
        splits, low = self.family, self.family.M
        m, n = round(low * (self.largest / low) ** share), max(1, (len(held_out) + 1) // 2)
        return tuple(
            indices[torch.rand(tasks, len(indices), generator=drawing).topk(size).indices]
            for indices, size in ((splits.pool, m), (held_out, n))
        )

    def _unseen(
        self, held_out: Tensor, tasks: int, share: float, drawing: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Draws training points, (tasks, m), and test points none of which teach NC."""
        chosen_by = self.held_out["validation"]
        assert isinstance(self.family, Splits)
        assert isinstance(chosen_by, Tensor)
        n = max(1, (len(held_out) + 1) // 2)
        order = held_out[torch.rand(tasks, len(held_out), generator=drawing).argsort(dim=1)]
        # The points that NC is chosen by do not test it.
        rest = torch.cat([order[:, n:], chosen_by.expand(tasks, -1)], dim=1)
        most = min(self.largest, rest.shape[1])
        low = min(self.family.M, most)
        m = round(low * (most / low) ** share)
        some = torch.rand(tasks, rest.shape[1], generator=drawing).topk(m).indices
        return rest.gather(1, some), order[:, :n]

    def meta_learner(self, nc: NeuralComplexity, plan: Plan, work: Workspace) -> MetaLearner:
        """Returns what runs Algorithm 2."""
        family, both = self.family, {"tasks": self.together, "seed": self.seed}
        own: dict[str, Any] = {"iterations": plan.iterations, "updates": plan.updates, **both}
        own |= {"batch": 8 if nc.labels else 32, "lr": 0.002, "capacity": 8192, "workspace": work}
        how: dict[str, Any] = {"recipe": self.recipe, "device": self.device, **both}
        if isinstance(family, Splits):
            how |= {"looks": LOOKS, "batch": BATCH, "smallest": family.M, "unlabelled": 256}
            collector: Collector = SplitCollector(splits=family, context_size=256, **how)
        else:
            collector = TaskCollector(family=family, **how)
        queue = CollectionQueue(collector, self.executor if plan.lag else None)
        share = 0.5 if nc.labels else 0.0
        own |= {"lag": plan.lag, "pseudo_predictions": share, "collections": queue}
        return MetaLearner(nc, family, **own)


def _hold_out(tasks: Tasks, seed: int) -> tuple[TaskFamily, dict[Part, TaskFamily | Tensor], int]:
    """Returns the tasks to learn from, those held out, and the size of the largest split."""
    own: TaskFamily
    held_out: Sequence[TaskFamily | Tensor]
    drawing, largest = stream(seed, "held out"), 0
    if isinstance(tasks, Splits):
        P = len(tasks.pool)
        order = tasks.pool[torch.randperm(P, generator=drawing)]
        sizes = [max(2, round(share * P)) for share in SHARES]
        pool, *held_out = order.split([P - sum(sizes), *sizes])
        # The shares of training and validation points stay if they are all, else their numbers.
        share = round(len(pool) * tasks.train / (tasks.train + tasks.test))
        train = max(1, min(len(pool) - 1, share))
        train, test = min(tasks.train, train), min(tasks.test, len(pool) - train)
        M, N = min(tasks.M, max(1, train // 2)), min(tasks.N, test)
        own = replace(tasks, pool=pool, train=train, test=test, M=M, N=N)
        largest = min(tasks.train, len(pool))
    elif isinstance(tasks, Task):
        if len(tasks) < 10:
            raise ValueError(f"tasks must be at least 10, to hold some out, got {len(tasks)}")
        order, few = torch.randperm(len(tasks), generator=drawing), max(1, len(tasks) // 10)
        parts = order.split([len(tasks) - 3 * few, few, 2 * few])
        own, *held_out = (TaskList(tasks[rows]) for rows in parts)
    elif not callable(getattr(tasks, "sample", None)) or hasattr(tasks, "columns"):  # a data frame
        told = "tasks must be made by split_tasks, be a family of tasks or a Task"
        raise TypeError(f"{told}, got {type(tasks).__name__}")
    else:
        own, held_out = tasks, [tasks, tasks]
    return own, dict(zip(PARTS, held_out, strict=True)), largest


def _standardized_mlp(before: Scaling, after: Scaling) -> nn.Module:
    """Returns an MLP between two affine maps, of which each has a scale and a shift."""
    inner = mlp(len(before[0]), (64,), len(after[0]))
    return nn.Sequential(Affine(*before), inner, Affine(*after))


def make_recipe(learner: Learner, example: Task, outputs: int) -> Recipe:
    """Returns how learners of `meta_learn` learn, once it is sure that they can."""
    shape, labels = tuple(example.X_tr.shape[2:]), not example.Y_tr.is_floating_point()
    if isinstance(learner, Recipe):
        recipe = learner
    else:
        make = learner
        if make is None and len(shape) == 3:
            make = partial(image_mlp, shape, (64,), outputs)
        elif make is None:  # an MLP that sees inputs of one scale, and answers in the targets' own
            scale, mean = torch.std_mean(example.X_tr.flatten(0, 1), dim=0)
            scale = torch.where(scale > 0, scale, 1.0)
            after: Scaling = torch.ones(outputs), torch.zeros(outputs)
            if not labels:
                after = torch.std_mean(example.Y_tr.flatten(0, 1), dim=0)

            make = partial(_standardized_mlp, (1 / scale, -mean / scale), after)

        loss, adam = (
            cross_entropy if labels else squared_error,
            partial(torch.optim.Adam, fused=True),
        )
        recipe = Recipe(make=make, loss=loss, steps=STEPS, lr=0.003, optimizer=adam)
    if isinstance(recipe.make, nn.Module) or not callable(recipe.make):
        kind = type(recipe.make).__name__
        raise TypeError(f"learner must build a network when called, not be one, got {kind}")
    with torch.random.fork_rng(devices=[]):
        h = recipe.make()
    if not isinstance(h, nn.Module):
        raise TypeError(f"learner must build a torch.nn.Module when called, got {type(h).__name__}")
    try:
        with torch.no_grad():
            H = h.eval()(torch.zeros(2, *shape))
        got = f"{tuple(H.shape)}" if isinstance(H, Tensor) else type(H).__name__
    except Exception as error:  # the network is the user's and may raise anything
        got = f"{type(error).__name__}: {error}"
    if got != f"{(2, outputs)}":
        told = f"learner must map inputs {(2, *shape)} to predictions {(2, outputs)}"
        raise ValueError(f"{told}, got {got}")
    return recipe

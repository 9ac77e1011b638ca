"""A run of `meta_learn`: its source, its learners and its untrained NC."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from neural_complexity.learners.batched import stack
from neural_complexity.learners.networks import Affine, image_mlp, mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.meta.executor import Collection, CollectionQueue
from neural_complexity.meta.plan import Plan
from neural_complexity.meta.sources import Part, Source, make_source
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.split_tasks import ArrayStore
from neural_complexity.tasks.splits import Splits
from neural_complexity.workspace import Workspace, fingerprint

__all__ = ["MetaRun", "batchable", "make_recipe", "settle"]

Tasks = Splits | TaskFamily | Task  # what `meta_learn` is given
Learner = Callable[[], nn.Module] | Recipe | None
Pair = tuple[Tensor, Tensor]
STEPS = 300  # of a learner of which only the network is given
EXAMPLES = 64  # tasks that NC takes its units from
# The sizes of NC for labels and for real targets; every field can be given another value.
FOR_LABELS: dict[str, Any] = {"width": 96, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
FOR_REALS: dict[str, Any] = {"width": 128, "heads": 4}
CLIP = 3.0  # features that hardly ever change would tell points apart by themselves


@dataclass(frozen=True, eq=False)
class MetaRun:
    """All that is settled before NC learns."""

    source: Source
    recipe: Recipe
    nc: NeuralComplexity
    together: int  # learners that run at once
    seed: int
    device: str
    fingerprint: str  # of all that decides the result but the plan
    _groups: dict[tuple[Part, int], Collection] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Rows of an update of NC."""
        return 8 if self.nc.labels else 32

    def held_out(
        self, part: Part, learners: int, callback: ProgressCallback | None
    ) -> list[Collection]:
        """Trains held-out learners, at least so many."""
        start, groups = time.perf_counter(), []
        wanted = -(-min(learners, self.source.limit(part)) // self.together)
        for index in range(wanted):
            groups.append(self.group(part, index))
            if callback is not None:
                done, spent = (index + 1) * self.together, time.perf_counter() - start
                callback(f"learners for {part}", done, wanted * self.together, spent, {})
        return groups

    def group(self, part: Part, index: int) -> Collection:
        """Trains those that run at once; those that planning has trained are not trained again."""
        if (part, index) not in self._groups:
            draws: dict[str, Any] = {"seed": self.seed, "index": index, "device": self.device}
            draws["tasks"] = min(self.together, self.source.limit(part))
            self._groups[part, index] = self.source.learners(self.recipe, part, **draws)
        return self._groups[part, index]

    def meta_learner(self, nc: NeuralComplexity, plan: Plan, work: Workspace) -> MetaLearner:
        """Returns what runs Algorithm 2."""
        own: dict[str, Any] = {"tasks": self.together, "seed": self.seed, "device": self.device}
        return MetaLearner(
            nc,
            self.source.family,
            seed=self.seed,
            collections=CollectionQueue(self.source.collector(self.recipe, **own)),
            workspace=work,
            iterations=plan.iterations,
            updates=plan.updates,
            batch=self.batch,
            lr=0.002,
            capacity=8192,
            pseudo_predictions=0.5 if nc.labels else 0.0,
        )


def settle(
    tasks: Tasks, learner: Learner, seed: int, device: str, fields: dict[str, Any]
) -> MetaRun:
    """Returns the run of what `meta_learn` is given; `fields` are of the architecture."""
    source = make_source(tasks, seed)
    family = source.family
    example = family.sample(EXAMPLES, stream(seed, "units")).loaded()
    labels = not example.Y_tr.is_floating_point()
    if isinstance(family, Splits):
        store = family.store
        outputs = store.outputs if isinstance(store, ArrayStore) else int(store.labels.max()) + 1
    elif labels:
        outputs = int(torch.stack([example.Y_tr.max(), example.Y_te.max()]).max()) + 1
    else:
        outputs = example.Y_tr.shape[-1]
    recipe = make_recipe(learner, example, outputs)
    own = {"outputs": outputs, "clip": CLIP, **(FOR_LABELS if labels else FOR_REALS)}
    if example.X_tr.ndim == 5:
        del own["clip"]  # the pixels of an image share one scale
        least = min(example.X_tr.shape[-2:])
        own |= {"channels": 32, "image_layers": min(3, max(1, int(math.log2(least))))}
    with seeded(seed, "weights"):
        nc = NeuralComplexity.for_tasks(example, **{**own, **fields}).to(device)
    # Of a user's own family the tasks say more than its name does.
    known = (source, recipe, nc.architecture, seed, example.X_tr, example.Y_tr)
    many = 8 if isinstance(tasks, Splits) else 64
    together = many if batchable(recipe, example) else 1
    return MetaRun(source, recipe, nc, together, seed, device, fingerprint(*known))


def make_recipe(learner: Learner, example: Task, outputs: int) -> Recipe:
    """Returns how learners of `meta_learn` learn, once it is sure that they can."""
    shape, labels = tuple(example.X_tr.shape[2:]), not example.Y_tr.is_floating_point()
    if isinstance(learner, Recipe):
        recipe = learner
    else:
        make = _default_network(example, outputs, labels) if learner is None else learner
        loss, adam = cross_entropy if labels else squared_error, partial(Adam, fused=True)
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
    wanted = f"{(2, outputs)}"
    if got != wanted:
        raise ValueError(
            f"learner must map inputs {(2, *shape)} to predictions {wanted}, got {got}"
        )
    return recipe


def _default_network(example: Task, outputs: int, labels: bool) -> Callable[[], nn.Module]:
    """Returns an MLP that sees inputs of one scale, and answers in the targets' own."""
    shape = tuple(example.X_tr.shape[2:])
    if len(shape) == 3:
        return partial(image_mlp, shape, (64,), outputs)
    scale, mean = torch.std_mean(example.X_tr.flatten(0, 1), dim=0)
    scale = torch.where(scale > 0, scale, 1.0)
    after = torch.ones(outputs), torch.zeros(outputs)
    if not labels:
        after = torch.std_mean(example.Y_tr.flatten(0, 1), dim=0)
    return partial(_standardized, (1 / scale, -mean / scale), after, outputs)


def _standardized(before: Pair, after: Pair, outputs: int) -> nn.Module:
    return nn.Sequential(Affine(*before), mlp(len(before[0]), (64,), outputs), Affine(*after))


def batchable(recipe: Recipe, example: Task) -> bool:
    """Returns whether several learners can run at once."""
    h = stack(recipe.make, 2, stream(0, "probe"))
    try:
        torch.autograd.grad(h(example.X_tr[:2]).square().sum(), list(h.parameters()))
    except RuntimeError:  # what vmap cannot do: branch on values, or change a buffer in place
        return False
    return True

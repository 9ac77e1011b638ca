"""A run of `meta_learn`: its source, its learners and its untrained NC."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neural_complexity.learners.fit import Recipe
from neural_complexity.meta.executor import Collection, CollectionQueue
from neural_complexity.meta.own_recipe import batchable, make_recipe
from neural_complexity.meta.plan import Plan
from neural_complexity.meta.sources import Part, Source, make_source
from neural_complexity.meta.trainer import MetaLearner, MetaTraining
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.splits import ArrayStore, Splits
from neural_complexity.workspace import Workspace, fingerprint

__all__ = ["MetaRun", "batch_size", "settle"]

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
            tasks = min(self.together, self.source.limit(part))
            draws: dict[str, Any] = {"seed": self.seed, "index": index, "device": self.device}
            group = self.source.learners(self.recipe, part, tasks=tasks, **draws)
            self._groups[part, index] = group
        return self._groups[part, index]

    def meta_learner(self, nc: NeuralComplexity, plan: Plan, work: Workspace) -> MetaLearner:
        """Returns what runs Algorithm 2."""
        collector = self.source.collector(
            self.recipe, tasks=self.together, seed=self.seed, device=self.device
        )
        training = MetaTraining(
            iterations=plan.iterations,
            updates=plan.updates,
            batch=batch_size(nc),
            lr=0.002,
            capacity=8192,
            pseudo_predictions=0.5 if nc.labels else 0.0,
        )
        queue = CollectionQueue(collector)
        family, seed = self.source.family, self.seed
        return MetaLearner(
            nc, family, seed=seed, training=training, collections=queue, workspace=work
        )


def settle(
    tasks: Splits | TaskFamily | Task,
    learner: Callable[[], nn.Module] | Recipe | None,
    seed: int,
    device: str,
    fields: dict[str, Any],
) -> MetaRun:
    """Returns the run of what `meta_learn` is given; `fields` are of the architecture."""
    source = make_source(tasks, seed)
    example = source.family.sample(EXAMPLES, stream(seed, "units")).loaded()
    labels = not example.Y_tr.is_floating_point()
    outputs = _outputs(source.family, example, labels)
    recipe = make_recipe(learner, example, outputs)
    many = 8 if isinstance(tasks, Splits) else 64
    own = {"clip": CLIP, **(FOR_LABELS if labels else FOR_REALS)}
    if example.X_tr.ndim == 5:
        del own["clip"]  # the pixels of an image share one scale
        least = min(example.X_tr.shape[-2:])
        own = {**own, "channels": 32, "image_layers": min(3, max(1, int(math.log2(least))))}
    with seeded(seed, "weights"):
        fields = {"outputs": outputs, **own, **fields}
        nc = NeuralComplexity.for_tasks(example, **fields).to(device)
    # Of a user's own family the tasks say more than its name does.
    known = (source, recipe, nc.architecture, seed, example.X_tr, example.Y_tr)
    together = many if batchable(recipe, example) else 1
    return MetaRun(source, recipe, nc, together, seed, device, fingerprint(*known))


def _outputs(family: TaskFamily, example: Task, labels: bool) -> int:
    if isinstance(family, Splits) and isinstance(family.store, ArrayStore):
        return family.store.outputs
    if isinstance(family, Splits):
        return int(family.store.labels.max()) + 1
    if labels:
        return int(torch.stack([example.Y_tr.max(), example.Y_te.max()]).max()) + 1
    return example.Y_tr.shape[-1]


def batch_size(nc: NeuralComplexity) -> int:
    """Returns the rows of an update of NC."""
    return 8 if nc.labels else 32

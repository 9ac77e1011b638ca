"""Learn to predict how badly a trained model will generalize, and train better models with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neural_complexity.integrations.estimators import NCClassifier as NCClassifier
    from neural_complexity.integrations.estimators import NCRegressor as NCRegressor
    from neural_complexity.learners.batched import BatchedLearner as BatchedLearner
    from neural_complexity.learners.batched import stack as stack
    from neural_complexity.learners.fit import fit as fit
    from neural_complexity.learners.networks import mlp as mlp
    from neural_complexity.learners.recipe import Recipe as Recipe
    from neural_complexity.losses import squared_error as squared_error
    from neural_complexity.memory import MemoryBank as MemoryBank
    from neural_complexity.meta.train import MetaLearner as MetaLearner
    from neural_complexity.model.complexity import NeuralComplexity as NeuralComplexity
    from neural_complexity.regularizers.nc import nc_penalty as nc_penalty
    from neural_complexity.regularizers.oracle import oracle_penalty as oracle_penalty
    from neural_complexity.regularizers.penalty import NCRegularizer as NCRegularizer
    from neural_complexity.regularizers.trust import trust as trust
    from neural_complexity.seeding import stream as stream
    from neural_complexity.snapshot import Snapshot as Snapshot
    from neural_complexity.snapshot import gap as gap
    from neural_complexity.snapshot import take_snapshot as take_snapshot
    from neural_complexity.task import Task as Task
    from neural_complexity.task import TaskFamily as TaskFamily
    from neural_complexity.tasks.sinusoid import Sinusoids as Sinusoids

# Loaded on first use: the bank's storage alone takes as long to import as torch itself.
_HOMES = {
    "BatchedLearner": "learners.batched",
    "MemoryBank": "memory",
    "MetaLearner": "meta.train",
    "NCClassifier": "integrations.estimators",
    "NCRegressor": "integrations.estimators",
    "NCRegularizer": "regularizers.penalty",
    "NeuralComplexity": "model.complexity",
    "Recipe": "learners.recipe",
    "Sinusoids": "tasks.sinusoid",
    "Snapshot": "snapshot",
    "Task": "task",
    "TaskFamily": "task",
    "fit": "learners.fit",
    "gap": "snapshot",
    "mlp": "learners.networks",
    "nc_penalty": "regularizers.nc",
    "oracle_penalty": "regularizers.oracle",
    "squared_error": "losses",
    "stack": "learners.batched",
    "stream": "seeding",
    "take_snapshot": "snapshot",
    "trust": "regularizers.trust",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

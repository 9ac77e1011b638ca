"""Learn to predict how badly a trained model will generalize, and train better models with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neural_complexity.assessment.result import Assessment as Assessment
    from neural_complexity.integrations.sklearn import NCClassifier as NCClassifier
    from neural_complexity.integrations.sklearn import NCRegressor as NCRegressor
    from neural_complexity.learners.fit import Recipe as Recipe
    from neural_complexity.learners.fit import fit as fit
    from neural_complexity.learners.networks import mlp as mlp
    from neural_complexity.losses import cross_entropy as cross_entropy
    from neural_complexity.losses import squared_error as squared_error
    from neural_complexity.meta.meta_learn import meta_learn as meta_learn
    from neural_complexity.meta.meta_run import Plan as Plan
    from neural_complexity.meta.trainer import MetaLearner as MetaLearner
    from neural_complexity.model.network import NeuralComplexity as NeuralComplexity
    from neural_complexity.regularizers.loop import NCRegularizer as NCRegularizer
    from neural_complexity.regularizers.nc import nc_penalty as nc_penalty
    from neural_complexity.regularizers.nc import trust as trust
    from neural_complexity.seeding import stream as stream
    from neural_complexity.snapshot import Snapshot as Snapshot
    from neural_complexity.snapshot import gap as gap
    from neural_complexity.snapshot import take_snapshot as take_snapshot
    from neural_complexity.task import Task as Task
    from neural_complexity.task import TaskFamily as TaskFamily
    from neural_complexity.tasks.families import Sinusoids as Sinusoids
    from neural_complexity.tasks.splits import split_tasks as split_tasks

# Loaded on first use: the bank's storage alone takes as long to import as torch itself.
_NAMES = {
    "assessment.result": ["Assessment"],
    "integrations.sklearn": ["NCClassifier", "NCRegressor"],
    "learners.fit": ["Recipe", "fit"],
    "learners.networks": ["mlp"],
    "losses": ["cross_entropy", "squared_error"],
    "meta.meta_learn": ["meta_learn"],
    "meta.meta_run": ["Plan"],
    "meta.trainer": ["MetaLearner"],
    "model.network": ["NeuralComplexity"],
    "regularizers.loop": ["NCRegularizer"],
    "regularizers.nc": ["nc_penalty", "trust"],
    "seeding": ["stream"],
    "snapshot": ["Snapshot", "gap", "take_snapshot"],
    "task": ["Task", "TaskFamily"],
    "tasks.families": ["Sinusoids"],
    "tasks.splits": ["split_tasks"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

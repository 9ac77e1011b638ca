"""Learn to predict how badly a trained model will generalize, and train better models with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neural_complexity.learners.fit import fit
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap, take_snapshot
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.sinusoids import Sinusoids

if TYPE_CHECKING:
    from neural_complexity.assessment.result import Assessment
    from neural_complexity.integrations.sklearn import NCClassifier, NCRegressor
    from neural_complexity.meta.meta_learn import meta_learn
    from neural_complexity.meta.plan import Plan
    from neural_complexity.meta.trainer import MetaLearner
    from neural_complexity.model.network import NeuralComplexity
    from neural_complexity.regularizers.loop import NCRegularizer
    from neural_complexity.regularizers.nc import nc_penalty, trust
    from neural_complexity.tasks.split_tasks import split_tasks

__all__ = ["Recipe", "Sinusoids", "Snapshot", "Task", "TaskFamily", "cross_entropy", "fit", "gap"]
__all__ += ["mlp", "squared_error", "stream", "take_snapshot"]
__all__ += ["Assessment", "MetaLearner", "NCClassifier", "NCRegressor", "NCRegularizer"]
__all__ += ["NeuralComplexity", "Plan", "meta_learn", "nc_penalty", "split_tasks", "trust"]

# Loaded on first use: the bank's storage alone takes as long to import as torch itself.
_HOMES = {
    "Assessment": "assessment.result",
    "MetaLearner": "meta.trainer",
    "NCClassifier": "integrations.sklearn",
    "NCRegressor": "integrations.sklearn",
    "NCRegularizer": "regularizers.loop",
    "NeuralComplexity": "model.network",
    "Plan": "meta.plan",
    "meta_learn": "meta.meta_learn",
    "nc_penalty": "regularizers.nc",
    "split_tasks": "tasks.split_tasks",
    "trust": "regularizers.nc",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

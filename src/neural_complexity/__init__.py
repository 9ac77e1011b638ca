"""Learn to predict how badly a trained model will generalize, and train better models with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neural_complexity.assessment.assess import assess
    from neural_complexity.assessment.compare import compare
    from neural_complexity.assessment.monitor import Monitor
    from neural_complexity.baselines.rank_measures import rank_measures
    from neural_complexity.integrations.sklearn import NCClassifier, NCRegressor
    from neural_complexity.learners.fit import Recipe, fit
    from neural_complexity.learners.networks import mlp
    from neural_complexity.losses import cross_entropy, squared_error
    from neural_complexity.meta.meta_learn import meta_learn
    from neural_complexity.meta.meta_run import Plan
    from neural_complexity.meta.trainer import MetaLearner
    from neural_complexity.model.network import NeuralComplexity
    from neural_complexity.regularizers.loop import NCRegularizer
    from neural_complexity.regularizers.nc import nc_penalty, trust
    from neural_complexity.seeding import stream
    from neural_complexity.snapshot import Snapshot, gap, take_snapshot
    from neural_complexity.task import Task, TaskFamily
    from neural_complexity.tasks.families import Sinusoids
    from neural_complexity.tasks.splits import split_tasks

__all__ = [
    "MetaLearner",
    "Monitor",
    "NCClassifier",
    "NCRegressor",
    "NCRegularizer",
]
__all__ += ["NeuralComplexity", "Plan", "Recipe", "Sinusoids", "Snapshot", "Task", "TaskFamily"]
__all__ += [
    "assess",
    "compare",
    "cross_entropy",
    "fit",
    "gap",
    "meta_learn",
    "mlp",
    "nc_penalty",
    "rank_measures",
    "split_tasks",
]
__all__ += ["squared_error", "stream", "take_snapshot", "trust"]

# Loaded on first use: torch and scikit-learn take seconds to import.
_NAMES = {
    "assessment.assess": ["assess"],
    "assessment.compare": ["compare"],
    "assessment.monitor": ["Monitor"],
    "baselines.rank_measures": ["rank_measures"],
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

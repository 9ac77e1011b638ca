"""The same learners on the same tasks under one method after another."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from neural_complexity.experiments.base.config import BaseConfig
from neural_complexity.experiments.base.rows import Keys
from neural_complexity.learners.fit import Recipe, Regularizer
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.trajectory import (
    Trajectory,
    diverged,
    train_learners,
    usable_rows,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.regularizers.penalties import (
    VariationalDropout,
    norm_penalty,
    oracle_penalty,
    variational_penalty,
)
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids

__all__ = [
    "FEW",
    "NONE",
    "Method",
    "Penalty",
    "dropout",
    "evaluation_tasks",
    "everywhere",
    "kept_tasks",
    "label",
    "losses_at",
    "nc_method",
    "nc_methods",
    "norm",
    "oracle",
    "sinusoid_recipe",
    "train_with",
    "unlabelled_inputs",
    "variational_dropout",
]

Penalty = Callable[[slice], Regularizer]  # of some of the tasks
# A mean without the learners that diverged says little when they are many, and is too low: it is
# the hard tasks that are missing. With a larger share of them a method gets no mean.
FEW = 0.01
LABEL = {"head": " {}", "weight": " ({:g})", "points": " ({} points)", "mode": ", {}"}


@dataclass(frozen=True)
class Method:
    """A way to regularize: what is added to the loss, and to the network."""

    keys: Keys  # of its rows: method, and head, weight, mode where they apply
    penalty: Penalty | None = None
    noise: Callable[[int], nn.Module] | None = None  # a layer from its width

    @property
    def name(self) -> str:
        """How people call it."""
        return label(self.keys)


def label(keys: Keys) -> str:
    """Returns how people call what rows with these keys are about.

    Example:
        >>> label({"method": "NC", "head": "direct", "weight": 2.0, "mode": "inductive"})
        'NC direct (2), inductive'
    """
    said = (form.format(keys[name]) for name, form in LABEL.items() if name in keys)
    return f"{keys['method']}{''.join(said)}"


NONE = Method({"method": "none"})


def everywhere(regularizer: Regularizer) -> Penalty:
    """Returns the penalty that is the same for all tasks."""
    return lambda _: regularizer


def norm(name: str, weight: float) -> Method:
    """Returns the method that penalizes a norm of the parameters."""
    return Method({"method": name, "weight": weight}, everywhere(norm_penalty(name, weight)))


def dropout(p: float) -> Method:
    """Returns the method that drops units with probability p, its weight."""
    return Method({"method": "dropout", "weight": p}, noise=lambda _: nn.Dropout(p))


def variational_dropout() -> Method:
    """Returns the method that learns how much noise each unit bears."""
    penalty = everywhere(variational_penalty())
    return Method({"method": "variational dropout"}, penalty, VariationalDropout)


def nc_method(
    keys: Keys,
    nc: NeuralComplexity,
    task: Task,
    *,
    X_unlabelled: Tensor | None = None,
    weight: float = 1.0,
    floor: float | None = None,
    safeguard: bool = False,
) -> Method:
    """Returns the method that adds the gap predicted by NC, as in the paper without a safeguard."""

    def penalty(rows: slice) -> Regularizer:
        X = None if X_unlabelled is None else X_unlabelled[rows]
        return nc_penalty(
            nc, task[rows], weight=weight, floor=floor, safeguard=safeguard, X_unlabelled=X
        )

    return Method(keys, penalty)


def nc_methods(
    networks: Mapping[str, NeuralComplexity], task: Task, X_unlabelled: Tensor
) -> list[Method]:
    """Returns the methods of NCs by head, on the test inputs themselves and on other ones."""
    return [
        nc_method({"method": "NC", "head": head, "mode": mode}, nc, task, X_unlabelled=X)
        for head, nc in networks.items()
        for mode, X in (("transductive", None), ("inductive", X_unlabelled))
    ]


def oracle(recipe: Recipe, task: Task) -> Method:
    """Returns the method that adds the true gap."""
    return Method({"method": "oracle"}, lambda rows: oracle_penalty(recipe.loss, task.Y_te[rows]))


def evaluation_tasks(config: BaseConfig) -> Task:
    """Returns the held-out sinusoids of an experiment."""
    generator = stream(config.seed, "evaluation tasks")
    return Sinusoids().sample(config.eval_tasks, generator).to(config.device)


def unlabelled_inputs(config: BaseConfig) -> Tensor:
    """Returns other inputs for the same tasks, (B, N, 1)."""
    generator = stream(config.seed, "unlabelled inputs")
    return Sinusoids().sample(config.eval_tasks, generator).X_te.to(config.device)


def sinusoid_recipe(
    *,
    width: int = 40,
    layers: int = 2,
    activation: Callable[[], nn.Module] = nn.ReLU,
    steps: int = 16,
    lr: float = 0.01,
) -> Recipe:
    """Returns the learners of the sinusoid experiments; the defaults are the paper's."""
    make = partial(mlp, 1, [width] * layers, 1, activation=activation)
    return Recipe(make=make, steps=steps, lr=lr)


def train_with(method: Method, recipe: Recipe, task: Task, *, seed: int) -> Trajectory:
    """Trains one learner per task under a method; the seed draws the initial learners."""
    if method.noise is not None:
        assert isinstance(recipe.make, partial), "noise needs learners made by mlp"
        make = partial(recipe.make, noise=method.noise)
        recipe = replace(recipe, make=make)
    return train_learners(recipe, task, seed=seed, penalty=method.penalty)


def losses_at(trajectory: Trajectory, steps: Sequence[int]) -> dict[str, Tensor]:
    """Returns the losses after some steps, and who had diverged then, (steps, B) each."""
    loss_tr, loss_te = trajectory.loss_tr, trajectory.loss_te
    found = {"loss_tr": loss_tr, "loss_te": loss_te, "diverged": diverged(loss_tr + loss_te)}
    return {name: tensor[list(steps)] for name, tensor in found.items()}


def kept_tasks(results: Iterable[dict[str, Tensor]]) -> Tensor:
    """Returns on which tasks no method's learner had diverged at the end, (B,).

    Raises:
        FloatingPointError: If there are not two such tasks.
    """
    return usable_rows(result["diverged"][-1] for result in results)

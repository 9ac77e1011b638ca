"""The same learners on the same tasks under one method after another."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from neural_complexity.experiments.base.config import POSITIVE, AtLeast, BaseConfig, Count
from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.rows import Keys, Row
from neural_complexity.learners import fit
from neural_complexity.learners.fit import CHUNK, Recipe, Regularizer, Trajectory
from neural_complexity.learners.networks import mlp
from neural_complexity.meta import scores
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers import penalties
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.families import Sinusoids

__all__ = ["LOST_NOTE", "METHOD", "NONE", "SCORES", "LearnerConfig", "Method", "Result", "Results"]
__all__ += ["beside", "compare", "dropout", "evaluation_tasks", "kept_tasks", "label", "loss_rows"]
__all__ += ["losses_at", "nc_method", "nc_methods", "norm", "oracle", "own_predictions", "presets"]
__all__ += ["see_gaps", "sinusoid_recipe", "too_many", "train_with", "variational_dropout"]

C = TypeVar("C")
Fields = Mapping[str, Any]
Networks = Mapping[str, NeuralComplexity]  # by head
Result = dict[str, Tensor]
Results = list[tuple[Keys, Result]]  # by method
Seer = Callable[["Method", Trajectory], Result]
# A mean without the learners that diverged says little when they are many, and is too low: it is
# the hard tasks that are missing. With a larger share of them a method gets no mean.
FEW = 0.01
LOST_NOTE = (
    "Behind †: so many learners diverged, with losses ten times above where they began, or not "
    "finite; where these are more than 1 %, a method gets no mean, and elsewhere they are left out "
    "of it."
)
LABEL = {"head": " {}", "source": " of {}", "weight": " ({:g})", "points": " ({} points)"}
LABEL["mode"] = ", {}"
METHOD = ("method", *LABEL)  # keys that name a method
SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "R2": scores.r_squared,
    "correlation": scores.correlation,
    "MAE": scores.mean_absolute_error,
}


@dataclass(frozen=True)
class Method:
    """A way to regularize: what is added to the loss, and to the network."""

    keys: Keys  # of its rows: method, and head, weight, mode where they apply
    penalty: Callable[[slice], Regularizer] | None = None  # of some of the tasks
    noise: Callable[[int], nn.Module] | None = None  # a layer from its width

    @property
    def name(self) -> str:
        """How people call it."""
        return label(self.keys)


def label(keys: Keys, before: str = "") -> str:
    """Returns how people call what has these keys, such as `"NC direct (2), inductive"`."""
    said = (form.format(keys[name]) for name, form in LABEL.items() if name in keys)
    return f"{before}{keys['method']}{''.join(said)}"


NONE = Method({"method": "none"})


def norm(name: str, weight: float) -> Method:
    """Returns the method that penalizes a norm of the parameters."""
    keys: Keys = {"method": name, "weight": weight}
    return Method(keys, lambda _: penalties.norm_penalty(name, weight))


def dropout(p: float) -> Method:
    """Returns the method that drops units with probability p, its weight."""
    return Method({"method": "dropout", "weight": p}, noise=lambda _: nn.Dropout(p))


def variational_dropout() -> Method:
    """Returns the method that learns how much noise each unit bears."""
    penalty, noise = penalties.variational_penalty, penalties.VariationalDropout
    return Method({"method": "variational dropout"}, lambda _: penalty, noise)


def nc_method(
    keys: Keys, nc: NeuralComplexity, task: Task, X_other: Tensor | None = None, **options: Any
) -> Method:
    """Returns the method that adds the gap predicted by NC, as in the paper without a safeguard."""

    def penalty(rows: slice) -> Regularizer:
        X = None if X_other is None else X_other[rows]
        return nc_penalty(nc, task[rows], X_unlabelled=X, **({"safeguard": False} | options))

    return Method(keys, penalty)


def nc_methods(networks: Networks, task: Task, config: BaseConfig) -> list[Method]:
    """Returns the methods of NCs by head, on the test inputs themselves and on other ones."""
    generator = stream(config.seed, "unlabelled inputs")
    X_other = Sinusoids().sample(config.eval_tasks, generator).X_te.to(config.device)  # (B, N, 1)
    return [
        nc_method({"method": "NC", "head": head, "mode": mode}, nc, task, X)
        for head, nc in networks.items()
        for mode, X in (("transductive", None), ("inductive", X_other))
    ]


def oracle(recipe: Recipe, task: Task) -> Method:
    """Returns the method that adds the true gap."""
    penalty = partial(penalties.oracle_penalty, recipe.loss)
    return Method({"method": "oracle"}, lambda rows: penalty(task.Y_te[rows]))


def presets(
    config: Callable[..., C], smoke: Fields, cpu: Fields, paper: Fields | None = None
) -> dict[str, Callable[[], C]]:
    """Returns presets by name: the config with some changes; its defaults are the paper's."""
    changes = {"smoke": smoke, "cpu": cpu, "paper": paper or {}}
    return {name: partial(config, **changed) for name, changed in changes.items()}


def evaluation_tasks(config: BaseConfig, family: TaskFamily | None = None) -> Task:
    """Returns the held-out tasks of an experiment, sinusoids if not of another family."""
    generator = stream(config.seed, "evaluation tasks")
    return (family or Sinusoids()).sample(config.eval_tasks, generator).to(config.device)


def sinusoid_recipe(
    *, width: int = 40, layers: int = 2, activation: type[nn.Module] = nn.ReLU, **learning: Any
) -> Recipe:
    """Returns the learners of the sinusoid experiments; the defaults are the paper's."""
    make = partial(mlp, 1, [width] * layers, 1, activation=activation)
    return Recipe(make=make, **learning)


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(BaseConfig):
    """An experiment that makes its learners; the defaults are the paper's."""

    learner_width: Count = 40  # Units of each hidden layer of the learner.
    learner_layers: Annotated[int, AtLeast(0)] = 2  # Hidden layers of the learner.
    steps: Count = 16  # Updates of the learner.
    lr: Annotated[float, POSITIVE] = 0.01  # Learning rate of the learner (SGD).

    def recipe(self) -> Recipe:
        """Returns how they learn."""
        width, layers = self.learner_width, self.learner_layers
        return sinusoid_recipe(width=width, layers=layers, steps=self.steps, lr=self.lr)


def train_with(method: Method, recipe: Recipe, task: Task, *, seed: int) -> Trajectory:
    """Trains one learner per task under a method; the seed draws the initial learners."""
    if method.noise is not None:
        assert isinstance(recipe.make, partial), "noise needs learners made by mlp"
        recipe = replace(recipe, make=partial(recipe.make, noise=method.noise))
    return fit.train_learners(recipe, task, seed=seed, penalty=method.penalty)


def losses_at(learners: Trajectory, steps: Iterable[int]) -> Result:
    """Returns the losses after some steps, and who had diverged then, (steps, B) each."""
    losses = {"loss_tr": learners.loss_tr, "loss_te": learners.loss_te}
    losses["diverged"] = fit.diverged(learners.loss_tr + learners.loss_te)
    return {name: tensor[list(steps)] for name, tensor in losses.items()}


def compare(
    methods: Iterable[Method],
    recipe: Recipe,
    task: Task,
    parts: Parts,
    *,
    seed: int,
    steps: Sequence[int] | None = None,
    see: Seer | None = None,
    name: Callable[[Keys], str] = label,
) -> Results:
    """Trains the same learners under each method; keeps losses at `steps` and what `see` adds."""

    def train(method: Method) -> Result:
        learners = train_with(method, recipe, task, seed=seed)
        found = losses_at(learners, [recipe.steps] if steps is None else steps)
        return found if see is None else found | see(method, learners)

    return [(m.keys, parts.do(name(m.keys), partial(train, m))) for m in methods]


def see_gaps(networks: Networks, method: Method, learners: Trajectory) -> Result:
    """Returns the gap, (B,), as it is and as all NCs, or the method's, predict it."""
    own = method.keys.get("head")
    ncs = {head: nc for head, nc in networks.items() if method is NONE or head == own}
    predicted = {f"predicted/{head}": judge(nc, learners.end).gap for head, nc in ncs.items()}
    return {"gap": learners.gap, **predicted}


@torch.no_grad()
def own_predictions(nc: NeuralComplexity, task: Task) -> Tensor:
    """Returns the posterior head's own mean for y, (B, N, C)."""
    chunks = (task[i : i + CHUNK] for i in range(0, len(task), CHUNK))
    return torch.cat([nc.belief(part.X_tr, part.Y_tr, part.X_te).prediction for part in chunks])


def kept_tasks(results: Iterable[Result], at: int = -1) -> Tensor:
    """Returns on which tasks no method's learner had diverged, at the end, (B,)."""
    return fit.usable_rows(result["diverged"][at] for result in results)


def too_many(diverged: Tensor) -> bool:
    """Returns whether too many learners diverged for a mean without them."""
    return bool(diverged.sum() > FEW * diverged.numel())


def loss_rows(
    row: Callable[..., Row],
    results: Results,
    result: Result,
    at: int,
    kept: Tensor | None = None,
    paper: float | None = None,
) -> list[Row]:
    """Returns mean losses of a method, between none and the oracle, and its share of the latter."""
    none, best = (r for keys, r in results if keys["method"] in ("none", "oracle"))
    # Without `kept` tasks, (B,): those that do not diverge here, under it, or all three for shares.
    own = ~result["diverged"][at] if kept is None else kept
    rows = [
        row("test loss", scores.estimate_mean(result["loss_te"][at][own]), paper),
        row("train loss", scores.estimate_mean(result["loss_tr"][at][own])),
    ]
    if result is not none and result is not best:
        three = (none, result, best)
        common = kept_tasks(three, at) if kept is None else kept
        losses = (r["loss_te"][at][common] for r in three)
        rows.append(row("share of oracle", scores.estimate(scores.share_of_oracle, *losses)))
    return rows


def beside(text: str, diverged: Row | None) -> str:
    """Returns a cell: a text and, behind †, how many learners diverged."""
    lost = f"†{diverged.value:,.0f}" if diverged and diverged.value else ""
    return f"{text} {lost}".strip()

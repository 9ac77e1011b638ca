"""How well measures rank a user's own models by their generalization gap."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import Tensor, nn

from neural_complexity.baselines.measures.catalogue import Measure, evaluate_measures
from neural_complexity.baselines.ranking import TAU, Columns, score_measure
from neural_complexity.convert.arrays_in import inputs, targets
from neural_complexity.convert.module_copy import evaluation_copy
from neural_complexity.learners.batched import BatchedLearner, join
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.scores import Estimate
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.task import Task

__all__ = ["Ranking", "rank_measures"]

FEWEST = 3  # models, of which there is something to rank
PROBED = 8  # points by which models that look alike are told apart

Data = tuple[object, object, object, object]  # X_tr, y_tr, X_te, y_te
Modules = Sequence[nn.Module]


@dataclass(frozen=True)
class Ranking:
    """Measures of n models, and how well each of them ranks their gaps."""

    scores: Mapping[str, Mapping[str, Estimate]]  # by measure, the best first, and by score
    values: Mapping[str, Tensor] = field(repr=False)  # of each measure, (n,)
    gaps: Tensor = field(repr=False)  # (n,), test minus training cross-entropy

    @property
    def table(self) -> pd.DataFrame:
        """A line for each measure, sorted by Kendall's tau: scores and half-widths of intervals."""
        return pd.DataFrame.from_dict(
            {
                measure: {
                    column: number
                    for name, score in own.items()
                    for column, number in ((name, score.value), (f"{name} ±", score.ci95))
                }
                for measure, own in self.scores.items()
            },
            orient="index",
        )

    def __repr__(self) -> str:
        shown = {
            measure: {
                name: f"{s.value:.2f}" + ("" if s.ci95 is None else f" ± {s.ci95:.2f}")
                for name, s in own.items()
            }
            for measure, own in self.scores.items()
        }
        lines: str = pd.DataFrame.from_dict(shown, orient="index").fillna("").to_string()
        return lines


def rank_measures(
    models: Modules,
    measures: Mapping[str, Measure],
    data: Data,
    *,
    initial: Modules | None = None,
    hyperparameters: Columns | None = None,
    predictions: Collection[str] = (),
) -> Ranking:
    """Scores how well measures rank trained models by their generalization gap.

    Args:
        models: Classifiers, which return logits; they may have several architectures, and are left
            as they are.
        measures: By name. Each is a function of B models of one architecture, of the same before
            training, and of their task, and returns one value per model, (B,); larger means that a
            model is predicted to generalize worse. It never sees test labels. See
            `baselines.measures.catalogue.MEASURES` for many.
        data: X_tr, y_tr, X_te and y_te: arrays, tensors or frames, with labels 0, 1, ...
        initial: The models before training; their parameters count as zero if `None`.
        hyperparameters: What the models differ in, a value for each by name: for the scores that
            ask whether a measure tells more than these do.
        predictions: Names of measures that predict the gap itself, also to be scored by R2 and MAE.

    Raises:
        TypeError: If a model is no module, or data hold no numbers.
        ValueError: If there are fewer than three models, if numbers of models or shapes do not
            agree, if losses are not finite, or if a measure is no number.

    Example:
        >>> from neural_complexity import mlp
        >>> X, y = torch.randn(40, 2), torch.arange(40) % 2
        >>> def largest(h, initial, task):
        ...     return torch.stack([p.flatten(1).amax(dim=1) for p in h.parameters()]).amax(dim=0)
        >>> models = [mlp(2, (width,), 2) for width in (4, 4, 8, 8)]
        >>> data = X[:20], y[:20], X[20:], y[20:]
        >>> rank_measures(models, {"largest": largest}, data).gaps.shape
        torch.Size([4])
    """
    _check(models, initial, hyperparameters, set(predictions) - set(measures))
    before = [_emptied(model) for model in models] if initial is None else list(initial)
    gaps = torch.full((len(models),), torch.nan).double()
    values = {name: gaps.clone() for name in measures}
    for rows in _groups(models, data[2]):
        h, start = (join([evaluation_copy(own[i]) for i in rows]) for own in (models, before))
        gaps[rows], told = _measure(h, start, measures, _task(h, data))
        for name in measures:
            values[name][rows] = told[name]
    if not gaps.isfinite().all():
        first = int((~gaps.isfinite()).nonzero()[0])
        raise ValueError(f"models must have finite losses, got another one from model {first}")
    if odd := [name for name, own in values.items() if own.isnan().any()]:
        first = int(values[odd[0]].isnan().nonzero()[0])
        raise ValueError(f"{odd[0]} must be a number for each model, got NaN for model {first}")
    found = {
        name: score_measure(own, gaps, hyperparameters, in_loss_units=name in predictions)
        for name, own in values.items()
    }
    best = sorted(found, key=lambda name: -found[name][TAU].value if TAU in found[name] else 1.0)
    return Ranking({name: found[name] for name in best}, values, gaps)


def _check(
    models: Modules, initial: Modules | None, hyper: Columns | None, unknown: set[str]
) -> None:
    for model in (*models, *(initial or ())):
        if not isinstance(model, nn.Module):
            raise TypeError(f"models must be of type torch.nn.Module, got {type(model).__name__}")
    n = len(models)
    if n < FEWEST:
        raise ValueError(f"models must be at least {FEWEST}, got {n}")
    columns = {"initial": initial} if initial is not None else {}
    for name, column in {**columns, **(hyper or {})}.items():
        if len(column) != n:
            raise ValueError(f"{name} must be one for each of {n} models, got {len(column)}")
    if unknown:
        got = ", ".join(sorted(unknown))
        raise ValueError(f"predictions must be names of measures, got {got}")


def _measure(
    h: BatchedLearner, initial: BatchedLearner, measures: Mapping[str, Measure], task: Task
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the gaps of B models, (B,), and all measures of them, (B,) each."""
    with torch.no_grad():
        gaps = gap(cross_entropy, take_snapshot(h, task), task.Y_te)
    found = evaluate_measures(measures, h, initial, task)
    return gaps.double().cpu(), {n: told.detach().double().cpu() for n, told in found.items()}


def _emptied(model: nn.Module) -> nn.Module:
    """Returns a copy whose parameters are zero."""
    copy = deepcopy(model)
    for parameter in copy.parameters():
        parameter.data.zero_()
    return copy


def _groups(models: Modules, X_te: object) -> list[list[int]]:
    """Returns which models can be computed at once: those that differ in their numbers alone."""
    alike: dict[object, list[int]] = {}
    for i, model in enumerate(models):
        shapes = tuple((name, t.shape, t.dtype) for name, t in model.state_dict().items())
        alike.setdefault((type(model), repr(model), shapes), []).append(i)
    groups = []
    for rows in alike.values():
        own = [evaluation_copy(models[i]) for i in rows]
        h = join(own)
        with torch.no_grad():
            X = _points("X_te", X_te, h)[:PROBED]
            # What modules say of themselves need not be all: a number in the code of one, say.
            alone = torch.stack([model(X) for model in own])
            same = torch.allclose(h(X.expand(len(own), *X.shape)), alone, 1e-3, 1e-5)
        groups += [rows] if same else [[i] for i in rows]
    return groups


def _points(name: str, X: object, h: BatchedLearner) -> Tensor:
    like = next(iter(h.parameters()))
    return inputs(name, X, dtype=like.dtype, device=like.device)


def _task(h: BatchedLearner, data: Data) -> Task:
    """Returns the data as the task of B models."""
    parts = []
    for name, X, y in (("tr", *data[:2]), ("te", *data[2:])):
        points = _points(f"X_{name}", X, h)
        labels = targets(f"y_{name}", y, labels=True, points=len(points)).to(points.device)
        parts += [points, labels]
    B = len(next(iter(h.parameters())))
    return Task(*(part.expand(B, *part.shape) for part in parts))

"""How well each complexity measure ranks the models of a zoo, with the luck of meta-training."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from neural_complexity.baselines.ranking import Hyperparameters, score_measure, sign_errors
from neural_complexity.experiments.base.measure_report import AVERAGED, ERROR, GAP, PREDICTIONS
from neural_complexity.experiments.base.rows import Row
from neural_complexity.meta.scores import Estimate, estimate_over_seeds

__all__ = ["Scores", "averages", "over_trainings", "score"]

Scores = dict[str, dict[str, Estimate]]  # by measure and metric


def score(
    of: Callable[..., Row], columns: dict[str, Tensor], hyper: dict[str, Tensor]
) -> tuple[Scores, list[Row]]:
    """Returns how well each measure ranks the models of a dataset, also as rows."""
    measures, gaps, known = dict(columns), columns[GAP].double(), Hyperparameters(hyper)
    del measures[GAP]
    found, rows = Scores(), list[Row]()
    for measure, values in measures.items():
        units = measure in PREDICTIONS
        trainings = values.double().reshape(len(gaps), -1).unbind(dim=1)
        own = [score_measure(v, gaps, hyper, in_loss_units=units) for v in trainings]
        found[measure] = {metric: over_trainings([e[metric] for e in own]) for metric in own[0]}
        rows += [of(metric, told, measure=measure) for metric, told in found[measure].items()]
        errors = [sign_errors(v, gaps, known) for v in trainings]
        for name, a, b in errors[0]:
            mean = torch.stack([e[name, a, b] for e in errors]).mean().item()
            environment = f"{name.replace('_', ' ')}: {a:g}, {b:g}"
            told = Estimate(mean, None, len(gaps))
            rows.append(of(ERROR, told, measure=measure, environment=environment))
    return found, rows


def over_trainings(own: Sequence[Estimate]) -> Estimate:
    """Returns the mean score of several meta-trainings; its interval has the luck of models, too.

    Meta-trainings are scored by the same models, so that their mean is as uncertain as each.
    """
    if len(own) == 1:
        return own[0]
    luck = estimate_over_seeds(torch.tensor([e.value for e in own]))
    halves = [e.ci95 for e in own if e.ci95 is not None]
    models = sum(halves) / len(halves) if len(halves) == len(own) else None
    both = None if models is None or luck.ci95 is None else math.hypot(models, luck.ci95)
    return Estimate(luck.value, both, own[0].n)


def averages(of: Callable[..., Row], scored: dict[str, Scores]) -> list[Row]:
    """Returns means over datasets of what all of them have."""
    rows = []
    for measure in next(iter(scored.values())):
        for metric in AVERAGED:
            own = [s[measure][metric] for s in scored.values() if metric in s.get(measure, {})]
            if len(own) == len(scored):
                value = sum(e.value for e in own) / len(own)
                half = math.hypot(*(math.nan if e.ci95 is None else e.ci95 for e in own)) / len(own)
                n = sum(e.n for e in own)
                told = Estimate(value, half if math.isfinite(half) else None, n)
                rows.append(of(metric, told, measure=measure))
    return rows

"""What is known of models of real tables without NC: predictions, truth, and other estimates."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.baselines.estimates import ESTIMATES, collect_evidence, point_losses
from neural_complexity.experiments.base import table_models as models
from neural_complexity.tasks.real_tables import RealTable

__all__ = ["METRICS", "Effort", "fit_models", "metrics_of"]

METRICS = {True: ("error", "log loss"), False: ("squared error",)}  # of labels, of numbers


@dataclass(frozen=True)
class Effort:
    """How much is refitted for the estimates that need it; see `collect_evidence`."""

    kinds: Sequence[str]  # of models
    repetitions: int
    samples: int


def metrics_of(H: NDArray[Any], y: NDArray[Any], *, labels: bool, unit: float = 1.0) -> Tensor:
    """Returns mean losses of predictions (n, C) at targets (n,), (metrics,), in some unit."""
    found = point_losses(H, y, labels)
    return torch.tensor([found[m].mean() / unit for m in METRICS[labels]], dtype=torch.float64)


def fit_models(
    table: RealTable, split: models.Split, effort: Effort, *, seed: int
) -> dict[str, Tensor]:
    """Fits models of all kinds to a split of a table.

    Returns:
        The split, X_tr (M, D), Y_tr (M,), X_te (N, D) and Y_te (N,), as numbers; predictions H_tr
        (models, M, C), H_te (models, N, C) and, out of fold, H_out (models, M, C); `truth`,
        (models, metrics), and `estimates`, (models, methods, metrics), losses on the test rows. NaN
        where there is no such model or estimate. Squared errors are in units of the variance of
        Y_tr. `seconds`: of one fit.
    """
    labels, metrics = table.labels, METRICS[table.labels]
    unit = 1.0 if labels else float(split.y_tr.var())
    C = int(split.y_tr.max()) + 1 if labels else 1
    X_tr, X_te = (models.as_numbers(X) for X in (split.X_tr, split.X_te))
    K = len(effort.kinds)
    H_tr, H_te, H_out = (np.full((K, len(X), C), np.nan) for X in (X_tr, X_te, X_tr))
    truth = torch.full((K, len(metrics)), torch.nan, dtype=torch.float64)
    told = torch.full((K, len(ESTIMATES), len(metrics)), torch.nan, dtype=torch.float64)
    seconds = torch.full((K,), torch.nan, dtype=torch.float64)
    for i, kind in enumerate(effort.kinds):
        model = models.make_model(kind, labels=labels, seed=seed)
        if model is None:
            continue
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            e = collect_evidence(
                model,
                split.X_tr,
                split.y_tr,
                split.X_te,
                repetitions=effort.repetitions,
                samples=effort.samples,
                numbers=models.as_numbers,
                seed=seed,
            )
        fits = 2 + 5 * effort.repetitions + effort.samples  # the model, and one for the hold-out
        seconds[i] = (time.perf_counter() - start) / fits
        H_tr[i], H_te[i], H_out[i] = e.H_tr, e.H_te, e.H_out[0]
        truth[i] = metrics_of(e.H_te, split.y_te, labels=labels, unit=unit)
        for j, estimate in enumerate(ESTIMATES.values()):
            found = estimate(e)
            told[i, j] = torch.tensor([found.get(m, np.nan) / unit for m in metrics])
    ledger.record("report", *(torch.from_numpy(a)[None] for a in (X_te, split.y_te)))
    arrays = {"X_tr": X_tr, "Y_tr": split.y_tr, "X_te": X_te, "Y_te": split.y_te}
    arrays |= {"H_tr": H_tr, "H_te": H_te, "H_out": H_out}
    kept = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return kept | {"truth": truth, "estimates": told, "seconds": seconds}

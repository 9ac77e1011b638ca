"""The bound that ships with the NC of digits holds at its rate for what it says that it is for."""

import numpy as np
import pytest
import torch
from sklearn import calibration, ensemble, linear_model, naive_bayes, neighbors, svm, tree
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from conftest import precision
from neural_complexity.convert.arrays_in import predict
from neural_complexity.experiments.base.unseen_digits import NOTE, unseen_digits, unseen_learners
from neural_complexity.losses import cross_entropy
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.gap_bounds import margin
from neural_complexity.snapshot import gap

pytestmark = pytest.mark.usefixtures("single_precision")
SIZES = (100, 300, 600)
MODELS = {
    **{f"{k} neighbours": neighbors.KNeighborsClassifier(k) for k in (1, 3, 15)},
    **{f"forest of {n}": ensemble.RandomForestClassifier(n, random_state=0) for n in (10, 100)},
    **{f"logistic, C={C:g}": linear_model.LogisticRegression(C=C, max_iter=500) for C in (0.01, 1)},
    "SVM": calibration.CalibratedClassifierCV(svm.SVC(), ensemble=False, cv=3),
    "boosting": ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
    "tree": tree.DecisionTreeClassifier(random_state=0),
    "small tree": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    "naive Bayes": naive_bayes.BernoulliNB(binarize=0.5),
    **{f"MLP of {w}": MLPClassifier(w, max_iter=60, random_state=0) for w in (16, 256)},
}


@pytest.fixture(scope="module")
def nc() -> NeuralComplexity:
    return NeuralComplexity.pretrained("digits")


def test_learners_have_points_that_nc_has_not_learned_from(nc: NeuralComplexity) -> None:
    X, y = unseen_digits(nc)
    assert len(X) == len(y) == 1797 - 1006
    (first, Y_te), (last, _) = unseen_learners(nc, 2, 3, seed=0)
    assert first.H_tr.shape[1] < last.H_tr.shape[1] <= len(X) - Y_te.shape[1]
    for task in zip(first.X_tr, first.X_te, strict=True):
        points = torch.cat(task)
        assert not nc.card.knows(points).any()
        assert len(points.unique(dim=0)) == len(points)  # no point is in both sets
    assert nc.calibration is not None
    assert nc.calibration.note == NOTE.format(len(X))


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_shipped_bound_covers_fresh_learners_at_its_rate(
    nc: NeuralComplexity, confidence: float, fresh: tuple[torch.Tensor, torch.Tensor]
) -> None:
    known, (residuals, spread) = nc.calibration, fresh
    assert known is not None
    assert len(residuals) >= 1000
    for method in ("conformal", "normalised"):
        R, S = (t.expand(len(spread), -1) for t in (known.residuals, known.spread))
        wide = margin(R, S, spread, confidence=confidence, method=method)
        covered = (residuals.abs() <= wide).double().mean().item()
        assert covered == pytest.approx(confidence, abs=0.02), method


@pytest.fixture(scope="module")
def fresh(nc: NeuralComplexity) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns how far NC is off on learners that it was not calibrated on, and its spreads."""
    with precision(torch.float32):
        learners = unseen_learners(nc, 16, 64, seed=1)
        judged = [judge(nc, snapshot) for snapshot, _ in learners]
        true = torch.cat([gap(nc.loss, snapshot, Y_te) for snapshot, Y_te in learners])
    spread = torch.cat([judgement.spread for judgement in judged])
    return true - torch.cat([judgement.gap for judgement in judged]), spread


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_note_separates_bounds_that_hold_from_bounds_that_do_not(nc: NeuralComplexity) -> None:
    X, y = (part.numpy() for part in unseen_digits(nc))
    missed, odd = [], []
    for size in SIZES:
        rows = np.random.default_rng(size).permutation(len(X))
        tr, te = rows[:size], rows[size : size + 144]
        for model in MODELS.values():
            model.fit(X[tr], y[tr])
            found = nc.assess(model, X[tr], y[tr], X[te])
            H = predict("X", model, X[te], labels=True, like=nc.x_mean)
            loss = cross_entropy(H[None], torch.from_numpy(y[te])[None]).mean().item()
            assert found.bound is not None
            assert found.unlike is not None
            missed.append(not found.bound.low <= loss - found.loss_tr <= found.bound.high)
            odd.append(1 - found.unlike.p_value)
    assert 0.05 < np.mean(missed) < 0.5
    assert roc_auc_score(missed, odd) >= 0.8
    noted = np.array(odd) > 0.95
    assert noted[missed].mean() > 0.9
    assert noted.mean() < 0.6

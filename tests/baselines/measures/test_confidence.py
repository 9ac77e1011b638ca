import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from measured import classes_of_points, classifiers, linear
from neural_complexity.baselines.measures import confidence
from neural_complexity.baselines.measures.layers import evaluated
from neural_complexity.baselines.measures.perturbation import draw
from neural_complexity.task import Task


def test_a_network_that_knows_nothing() -> None:
    task, h = classes_of_points(), linear(torch.zeros(3, 3, 4))
    assert confidence.lack_of_confidence(h, h, task).tolist() == pytest.approx([2 / 3] * 3)
    assert confidence.predictive_entropy(h, h, task).tolist() == pytest.approx([math.log(3)] * 3)
    assert confidence.dispersity(h, h, task).tolist() == pytest.approx([-1 / 3] * 3)
    assert confidence.perturbed_disagreement(h, h, task).tolist() == [0, 0, 0]


def test_a_network_that_is_sure_of_as_many_points_of_each_class() -> None:
    X = torch.eye(3).repeat(1, 2, 1).view(1, 6, 3)
    Y = torch.arange(3).repeat(1, 2)
    h, task = linear(100 * torch.eye(3).unsqueeze(0)), Task(X, Y, X, Y)
    for name in ("lack_of_confidence", "predictive_entropy", "calibration_error"):
        assert getattr(confidence, name)(h, h, task).item() == pytest.approx(0, abs=1e-9), name
    assert confidence.dispersity(h, h, task).item() == pytest.approx(-1)


def test_there_are_no_differences_on_the_same_points() -> None:
    task = classes_of_points()
    h, initial = classifiers(task)
    same = replace(task, X_te=task.X_tr, Y_te=task.Y_tr)
    for measure in (confidence.difference_of_confidences, confidence.difference_of_entropies):
        assert measure(h, initial, same).abs().max() < 1e-12
        assert measure(h, initial, task).abs().min() > 1e-6


def test_test_inputs_below_the_threshold_are_counted() -> None:
    # Confidence grows with |x|. Of five training points one is wrong: the threshold is at |x| = 2.
    X_tr = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 5, 1)
    X_te = torch.tensor([-0.5, 1.5, -1.9, 2.1]).view(1, 4, 1)
    Y = torch.tensor([[1, 0, 0, 0, 0]])
    h, task = linear(torch.tensor([[[1.0], [-1.0]]])), Task(X_tr, Y, X_te, Y[:, :4])
    assert confidence.average_thresholded_confidence(h, h, task).tolist() == [0.75]
    wrong = replace(task, Y_tr=torch.ones_like(Y))
    assert confidence.average_thresholded_confidence(h, h, wrong).tolist() == [1.0]


@given(seed=st.integers(0, 99))
def test_the_calibration_error_is_that_of_bins(seed: int) -> None:
    task = classes_of_points(M=40, seed=seed)
    h = linear(torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(seed)))
    P = h(task.X_tr).softmax(dim=-1).detach()
    expected = []
    for p, y in zip(P.numpy(), task.Y_tr.numpy(), strict=True):
        sure, right = p.max(axis=1), p.argmax(axis=1) == y
        bins = np.digitize(sure, np.linspace(0, 1, 16)[1:-1])
        parts = [bins == i for i in np.unique(bins)]
        gaps = [abs(right[part].mean() - sure[part].mean()) * part.mean() for part in parts]
        expected.append(sum(gaps))
    assert confidence.calibration_error(h, h, task).tolist() == pytest.approx(expected)


def test_copies_disagree_where_a_perturbed_network_does() -> None:
    task = classes_of_points(N=200)
    W = torch.randn(3, 3, 4)
    h = linear(W)
    chosen, shares = (task.X_te @ W.mT).argmax(dim=-1), []
    for i in range(confidence.COPIES):
        moved = W + 0.1 * W.abs() * draw(evaluated(h), i)["weight"]
        other = (task.X_te @ moved.mT).argmax(dim=-1)
        shares.append((other != chosen).double().mean(dim=1))
    expected = torch.stack(shares).mean(dim=0)
    assert (expected > 0).all()
    torch.testing.assert_close(confidence.perturbed_disagreement(h, h, task), expected)

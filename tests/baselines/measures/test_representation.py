from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import davies_bouldin_score

from measured import classes_of_points, classifiers, linear
from neural_complexity.baselines.measures import representation
from neural_complexity.baselines.measures.layers import evaluated, inputs_of
from neural_complexity.baselines.measures.margins import input_margin


@given(seed=st.integers(0, 99), C=st.integers(2, 5), M=st.integers(6, 20))
def test_the_index_is_that_of_scikit_learn(seed: int, C: int, M: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(2, M, 3, generator=generator)
    Y = torch.randint(C, (2, M), generator=generator)
    Y[:, :2] = torch.tensor([0, C - 1])  # two classes at least; others may be without points
    expected = [davies_bouldin_score(z.numpy(), y.numpy()) for z, y in zip(Z, Y, strict=True)]
    assert representation.davies_bouldin(Z, Y).tolist() == pytest.approx(expected)


def test_one_class_is_no_cluster_among_others() -> None:
    Z, Y = torch.randn(1, 4, 2), torch.full((1, 4), 2)
    assert representation.davies_bouldin(Z, Y).tolist() == [0]


def test_the_last_hidden_layer_is_looked_at() -> None:
    task = classes_of_points()
    h, initial = classifiers(task)
    hidden = inputs_of(evaluated(h), "4.weight", task.X_tr)
    expected = representation.davies_bouldin(hidden, task.Y_tr)
    assert torch.equal(representation.davies_bouldin_index(h, initial, task), expected)
    product = expected * representation.mixup_error(h, initial, task)
    assert torch.equal(representation.davies_bouldin_times_mixup(h, initial, task), product)


def test_midpoints_are_on_the_side_of_their_class() -> None:
    W = torch.randn(3, 3, 4)
    task = classes_of_points()
    labelled = replace(task, Y_tr=(task.X_tr @ W.mT).argmax(dim=-1))
    h = linear(W)
    # The classes of a linear network are convex: what it gets right, it gets right in between.
    assert representation.mixup_error(h, h, labelled).tolist() == [0, 0, 0]
    assert (representation.mixup_margin(h, h, labelled) < 0).all()
    # A network that has one answer is wrong for all other classes, mixed or not.
    biased = linear(torch.zeros(3, 3, 4), torch.tensor([[1.0, 0.0, 0.0]] * 3).double())
    wrong = (task.Y_tr != 0).double().mean(dim=1)
    torch.testing.assert_close(representation.mixup_error(biased, h, task), wrong)
    torch.testing.assert_close(representation.augmentation_error(biased, h, task), wrong)


def test_noise_is_in_units_of_the_inputs() -> None:
    task = classes_of_points()
    W = torch.randn(3, 3, 4)
    h, scaled = linear(W), linear(W / 100)
    other = replace(task, X_tr=100 * task.X_tr, X_te=100 * task.X_te)
    error = representation.augmentation_error
    torch.testing.assert_close(error(h, h, task), error(scaled, h, other))
    margin = representation.augmentation_margin
    torch.testing.assert_close(100 * margin(h, h, task), margin(scaled, h, other))


def test_noise_costs_margin() -> None:
    W, task = torch.eye(3, 4).expand(3, 3, 4), classes_of_points(M=200)
    labelled = replace(task, Y_tr=(task.X_tr @ W.mT).argmax(dim=-1))
    h = linear(W)
    noisy, plain = representation.augmentation_margin, input_margin
    assert (noisy(h, h, labelled) > plain(h, h, labelled)).all()
    assert (representation.augmentation_error(h, h, labelled) > 0).all()

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn

from neural_complexity.convert.predictions import (
    BATCH,
    LEAST,
    columns_of,
    in_order,
    logarithms,
    looks_like_shares,
    predict,
)

LIKE = torch.zeros(1, dtype=torch.float64)


class Restless(nn.Module):
    """Changes itself whenever it is asked."""

    calls: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
        self.net[1].eval()  # frozen, as in fine-tuning
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(3), persistent=False)

    def forward(self, X: Tensor) -> Tensor:
        self.calls += 1
        self.last = X[0].clone()
        X.mul_(2)
        return self.net(X) + 0 * torch.rand(())  # type: ignore[no-any-return]


@given(points=st.sampled_from([1, 2, BATCH, BATCH + 1]), dtype=st.sampled_from(["f4", "f8", "i4"]))
@settings(max_examples=8)
def test_a_module_is_asked_in_its_own_way_and_left_as_it_was(points: int, dtype: str) -> None:
    model = Restless().train().to(torch.float32)
    model.net[1].eval()
    X = (10 * np.random.default_rng(0).random((points, 3))).astype(dtype)
    before, copy = X.copy(), {k: v.clone() for k, v in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    last, state = model.last, torch.get_rng_state()
    H = predict("X_tr", model, X, labels=True, like=LIKE)
    assert H.dtype == LIKE.dtype
    assert not H.requires_grad
    assert np.array_equal(X, before)
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, copy[name]), name
    assert model.last is last
    assert torch.equal(last, torch.zeros(3))
    assert "last" not in model.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    right = model.eval().net(2 * torch.from_numpy(before).float())
    torch.testing.assert_close(H, right.double(), rtol=1e-5, atol=1e-5)


def test_a_module_that_fails_is_left_as_it_was_too() -> None:
    model = Restless().train()
    modes = [module.training for module in model.modules()]
    sentence = r"able to predict for X_tr of shape \(2, 4\), got RuntimeError: mat1 and mat2"
    with pytest.raises(ValueError, match=sentence):
        predict("X_tr", model, torch.zeros(2, 4), labels=True, like=LIKE)
    assert [module.training for module in model.modules()] == modes
    assert model.calls == 0


def test_any_callable_will_do() -> None:
    X = torch.randn(5, 2)
    for model in (
        lambda X: X @ torch.ones(2),
        lambda X: (X @ torch.ones(2)).numpy(),
        lambda X: X.sum(dim=1, keepdim=True),
        lambda X: X.sum(dim=1).bfloat16(),
    ):
        H = predict("X_tr", model, X.tolist(), labels=False, like=LIKE)
        torch.testing.assert_close(H, X.sum(dim=1, keepdim=True), rtol=1e-2, atol=1e-2)
    # A model may squeeze the axis of a single point.
    one = predict("X_tr", lambda X: (X @ torch.ones(2, 3)).squeeze(), X[:1], labels=True, like=LIKE)
    assert one.shape == (1, 3)
    assert predict("X", lambda X: X, [1.0, 2.0], labels=False, like=LIKE).shape == (2, 1)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (3, "model must be a callable, a torch.nn.Module or a scikit-learn estimator, got int"),
        (LinearRegression, "must be able to predict for X_te of shape (4, 2), got TypeError"),
        (lambda X: (X, X), "the model must return one tensor or array of predictions, got tuple"),
        (lambda X: {"logits": X}, "got dict: wrap it in a function"),
        (lambda _: None, "got NoneType"),
        (lambda X: X[:-1], "must be one for each of the 4 points, got 3 of them"),
        (lambda X: X[:, :0], "got shape (4, 0)"),
        (lambda X: X[None], "got shape (1, 4, 2)"),
        (lambda X: X.sum(), "got shape ()"),
        (lambda X: X * 1j, "must hold real numbers"),
        (lambda X: X / 0, "must be finite, got NaN or infinity at 4 of 4 points"),
        (lambda _: np.array(["a"] * 4), "must hold numbers, got text"),
        (lambda X: X.nothing, "got AttributeError"),
        (nn.LazyLinear(2), "model must have been trained, got a module with lazy parameters"),
        (LogisticRegression(), "must be able to predict for X_te of shape (4, 2), got NotFitted"),
        (
            LinearSVC(),
            "have predict_proba where targets are labels (see CalibratedClassifierCV), got LinearS",
        ),
        (LinearRegression(), "must have predict_proba"),
    ],
)
def test_models_that_cannot_be_asked_are_told_in_one_sentence(model: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        predict("X_te", model, torch.ones(4, 2), labels=True, like=LIKE)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_estimators_are_asked_with_what_was_given() -> None:
    import pandas

    X = pandas.DataFrame(np.random.default_rng(0).random((20, 3)), columns=list("abc"))
    y = X["a"] + 2 * X["b"]
    model = LinearRegression().fit(X, y)
    made = predict("X_tr", model, X, labels=False, like=LIKE)  # without a warning about names
    torch.testing.assert_close(made, torch.tensor(y.to_numpy()[:, None]))
    bare = LinearRegression().fit(X.to_numpy(), y)
    for given_as in (X.to_numpy(), torch.tensor(X.to_numpy()), X.to_numpy().reshape(20, 1, 1, 3)):
        torch.testing.assert_close(predict("X", bare, given_as, labels=False, like=LIKE), made)
    forest = DecisionTreeClassifier().fit(X.to_numpy(), np.where(y > 1, "high", "low"))
    H = predict("X", forest, X.to_numpy(), labels=True, like=LIKE)
    assert columns_of(forest) == ["high", "low"]
    assert H.unique().tolist() == pytest.approx([np.log(LEAST), 0.0])
    assert torch.equal(in_order("H", H, ["high", "low"], ["low", "high"]), H.flip(1))
    with pytest.raises(TypeError, match="must be a regressor where NC judges real targets"):
        predict("X", forest, X.to_numpy(), labels=False, like=LIKE)


@given(
    st.permutations(range(6)),
    st.integers(1, 6),
    st.integers(0, 99),
)
@settings(max_examples=20)
def test_columns_find_their_classes_and_unknown_ones_are_next_to_impossible(
    order: list[int], count: int, seed: int
) -> None:
    columns = [f"c{i}" for i in order[:count]]
    logits = torch.randn(4, count, generator=torch.Generator().manual_seed(seed))
    made = in_order("H", logits, columns, [f"c{i}" for i in range(6)]).softmax(dim=1)
    expected = torch.zeros(4, 6)
    expected[:, order[:count]] = logits.softmax(dim=1)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
    assert looks_like_shares(made)
    assert torch.equal(made.argmax(dim=1), expected.argmax(dim=1))
    torch.testing.assert_close(logarithms("H", expected).exp(), expected, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="must hold labels of the classes"):
        in_order("H", logits, ["other", *columns[1:]], ["c0"])
    with pytest.raises(ValueError, match="one column for each of"):
        in_order("H", logits, [*columns, "more"], [*columns, "more"])
    with pytest.raises(ValueError, match="must be probabilities"):
        logarithms("H", 2 * expected)
    assert not looks_like_shares(logits)

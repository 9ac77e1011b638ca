import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from neural_complexity.convert.arrays_in import (
    BATCH,
    LEAST,
    array,
    columns_of,
    encode,
    in_order,
    inputs,
    logarithms,
    looks_like_shares,
    numbers,
    pair,
    predict,
    targets,
)

LIKE = torch.zeros(1, dtype=torch.float64)

TYPES = [
    *("float16", "float32", "float64", "longdouble", ">f4", ">i2"),
    *("bool", "int8", "int64", "uint8", "uint16", "uint32", "uint64"),
]
SHAPES = st.one_of(
    st.sampled_from([(), (0,), (0, 3), (3, 0), (1,), (1, 1), (4,), (2, 1, 2, 2), (1, 1, 5, 1)]),
    st.lists(st.integers(0, 3), max_size=5).map(tuple),
)


def refused(attempt: Callable[[], object], start: str = "") -> None:
    """Wants one sentence in the library's form."""
    with pytest.raises((ValueError, TypeError)) as caught:
        attempt()
    sentence = str(caught.value)
    assert sentence.startswith(start), sentence
    assert " must " in sentence, sentence
    assert "got" in sentence, sentence
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    assert len(sentence) < 250


def draw_array(seed: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return (np.random.default_rng(seed).random(shape) * 100).astype(dtype)


# What one array can come as: all must give the same tensor.
FORMS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "array": lambda a: a,
    "read only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "backwards": lambda a: a[::-1].copy()[::-1] if a.ndim else a,
    "lists": lambda a: a.tolist(),
    "objects": lambda a: a.astype(object),
    "tensor": lambda a: torch.tensor(a.astype(np.float64).tolist()),
    "tensors": lambda a: [torch.tensor(row.astype(np.float64).tolist()) for row in a],
    "gradients": lambda a: torch.tensor(a.astype(np.float64).tolist(), requires_grad=True),
}


@given(
    seed=st.integers(0, 9),
    dtype=st.sampled_from(TYPES),
    shape=SHAPES,
    wanted=st.sampled_from([None, (1,), (3,), (1, 2, 2)]),
    to=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(max_examples=60)
def test_inputs_of_any_type_and_shape_are_right_or_refused_in_one_sentence(
    seed: int,
    dtype: str,
    shape: tuple[int, ...],
    wanted: tuple[int, ...] | None,
    to: torch.dtype,
) -> None:
    array = draw_array(seed, dtype, shape)
    fits = len(shape) in (2, 4) if wanted is None else shape[1:] == wanted and len(shape) > 0
    fits = fits or (wanted == (1,) and len(shape) == 1)
    fits = fits or (wanted == (1, 2, 2) and shape[1:] in ((2, 2), (4,)))
    for name, form in FORMS.items():
        if not shape and name in ("lists", "tensors"):
            continue
        given = form(array)
        if 0 in shape or not fits:
            refused(lambda x=given: inputs("X_tr", x, shape=wanted, dtype=to), "X_tr must")  # type: ignore[misc]
            continue
        made = inputs("X_tr", given, shape=wanted, dtype=to)
        assert made.dtype == to
        assert not made.requires_grad
        assert made.shape[1:] == (wanted or shape[1:])
        expected = torch.from_numpy(array.astype(np.float64)).to(to).view_as(made)
        assert torch.equal(made, expected), name


@given(
    where=st.integers(0, 5),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
@settings(max_examples=12)
def test_a_number_that_is_not_finite_is_told_by_its_point(
    where: int, value: float, dtype: torch.dtype
) -> None:
    X = torch.zeros(3, 2, dtype=dtype)
    X.view(-1)[where] = value
    sentence = f"finite, got NaN or infinity at 1 of 3 points, first at point {where // 2}"
    for x in (X, X.tolist(), X.double().numpy()):
        with pytest.raises(ValueError, match=sentence):
            inputs("X_te", x)
        with pytest.raises(ValueError, match=sentence):
            targets("y", x, labels=False)
    with pytest.raises(ValueError, match="y must hold whole numbers as labels, got"):
        targets("y", X.view(-1), labels=True)


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        b"bytes",
        None,
        {},
        {1, 2},
        object(),
        print,
        iter([1]),
        [],
        [[]],
        [[], []],
        [[1], [1, 2]],
        [[1], 2],
        ["a", "b"],
        [["1", "2"]],
        [["a", 1.0]],
        [[None, 1.0]],
        [[1j]],
        [[object()]],
        [[[1, 2], [3]]],
        [[10**400]],
        [[Decimal("sNaN")]],
        np.array([[1 + 0j]]),
        np.array([["2020-01-01"]], dtype="datetime64[D]"),
        np.array([[3]], dtype="timedelta64[s]"),
        np.array([["a"]], dtype=object),
        np.array([[b"a"]]),
        np.array([[1, 2], [3]], dtype=object),
        np.zeros(3, dtype=[("a", float)]),
        np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]]),
        torch.zeros(2, 2, dtype=torch.complex64),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, 2, device="meta"),
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2), "a"],
        torch.zeros(0, 3),
        [[1e300, 1.0]],  # too large for float32
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_points_is_refused_in_one_sentence(wrong: object) -> None:
    refused(lambda: inputs("X_tr", wrong, dtype=torch.float32), "X_tr must")
    refused(lambda: targets("y_tr", wrong, labels=False, dtype=torch.float32), "y_tr must")
    refused(lambda: targets("y_tr", wrong, labels=True), "y_tr must")


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [
        (None, TypeError, "X_tr must be an array of numbers, got NoneType"),
        ([[1.0], [1.0, 2.0]], ValueError, "X_tr must have rows of one length, got several"),
        (
            np.ma.masked_array([[1.0, 2.0]], mask=[[True, False]]),
            ValueError,
            "X_tr must have no missing values, got a masked array",
        ),
    ],
    ids=["None", "ragged", "masked"],
)
def test_what_is_wrong_is_named(wrong: object, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"^{sentence}$"):
        inputs("X_tr", wrong, shape=(1,))


def test_data_frames_are_read_and_their_text_is_told_by_column() -> None:
    import pandas

    frame = pandas.DataFrame({"age": [1, 2], "height": [0.5, 1.5], "tall": [False, True]})
    right = torch.tensor([[1.0, 0.5, 0.0], [2.0, 1.5, 1.0]])
    assert torch.equal(inputs("X_tr", frame, shape=(3,)), right)
    assert torch.equal(inputs("X_tr", frame.convert_dtypes(), shape=(3,)), right)
    assert torch.equal(targets("y", frame["age"], labels=True), torch.tensor([1, 2]))
    assert torch.equal(targets("y", frame[["height"]], labels=False), right[:, 1:2])
    frame["city"] = ["Oslo", "Rome"]
    with pytest.raises(TypeError, match="column city of X_tr must hold numbers, got text: 'Oslo'"):
        inputs("X_tr", frame)
    frame["city"] = pandas.Series([1, None], dtype="Int64")
    with pytest.raises(ValueError, match="X_tr must be finite, got NaN or infinity at 1 of 2"):
        inputs("X_tr", frame)
    frame["city"] = pandas.to_datetime(["2020-01-01", "2021-01-01"])
    with pytest.raises(TypeError, match="column city of X_tr must hold numbers, got datetime64"):
        inputs("X_tr", frame)
    frame["city"] = [None, 1.0]  # NaN to pandas
    with pytest.raises(ValueError, match="X_tr must be finite"):
        inputs("X_tr", frame)
    names = frame["city"].astype(object)
    names[:] = ["b", "a"]
    for series in (names, names.astype("category"), names.astype("string"), names.to_frame()):
        assert encode(series, ["a", "b"]).tolist() == [1, 0]
    assert inputs("X", pandas.DataFrame([[Decimal(1), Fraction(1, 2)]])).tolist() == [[1.0, 0.5]]


def test_sparse_matrices_are_told_what_to_do() -> None:
    from scipy import sparse

    with pytest.raises(TypeError, match="got csr_array: Sparse data was passed.*toarray"):
        inputs("X_tr", sparse.csr_array(np.eye(3)))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(1, 10),
    st.sampled_from(TYPES[:6] + TYPES[7:]),
)
@settings(max_examples=20)
def test_labels_of_any_type_are_int64_and_in_range(y: list[int], classes: int, dtype: str) -> None:
    array = np.array(y, dtype=dtype)
    for form in (array, array[:, None], array.tolist(), torch.tensor(y), torch.tensor(y).half()):
        if max(y) >= classes:
            refused(lambda x=form: targets("y", x, labels=True, outputs=classes))  # type: ignore[misc]
        else:
            made = targets("y", form, labels=True, outputs=classes, points=len(y))
            assert made.dtype == torch.int64
            assert made.tolist() == y
        refused(lambda x=form: targets("y", x, labels=True, points=len(y) + 1))  # type: ignore[misc]
    names = [f"class {i}" for i in range(classes)]
    called = [f"class {i}" for i in y]
    for text in (called, np.array(called), np.array(called, dtype=object), tuple(called)):
        if max(y) >= classes:
            refused(lambda t=text: encode(t, names))  # type: ignore[misc]
        else:
            assert encode(text, names).tolist() == y
    refused(lambda: encode([], names))
    refused(lambda: encode([[0]], names))
    refused(lambda: encode(np.zeros((2, 2)), names))
    refused(lambda: targets("y", [-1, 0], labels=True))
    refused(lambda: targets("y", [[0.0, 1.0]], labels=True))
    refused(lambda: targets("y", [0.0, 1.0], labels=False, outputs=2))


def test_classes_may_be_numbers_of_any_type_and_are_not_mixed_up_with_text() -> None:
    classes = [3, 7, "7"]
    for y in ([7, "7", 3], [np.int32(7), "7", 3.0], np.array([7, "7", 3], dtype=object)):
        assert encode(y, classes).tolist() == [1, 2, 0]
    assert encode(torch.tensor([7.0, 3.0], dtype=torch.bfloat16), classes).tolist() == [1, 0]
    assert encode([torch.tensor(7), torch.tensor(3)], classes).tolist() == [1, 0]
    assert encode(np.array([True, False]), [False, True]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="labels of the classes 3, 7, 7, got 4"):
        encode([4], classes)
    with pytest.raises(ValueError, match="got nan"):
        encode([float("nan")], classes)


class Pairs(Dataset[Any]):
    """A dataset of whatever it is given."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(np.ones(2), "a"), (np.zeros(2), "b")])


class Endless(Dataset[Any]):
    def __getitem__(self, i: int) -> Any:
        return i


def test_datasets_and_loaders_are_taken_apart_in_order() -> None:
    X, y = torch.randn(7, 3), torch.arange(7)
    state = torch.get_rng_state()
    whole = TensorDataset(X, y)
    for data in (whole, DataLoader(whole, batch_size=3), DataLoader(whole, batch_size=None)):
        made = pair("X_tr", data)
        assert torch.equal(made[0], X)
        assert torch.equal(made[1], y)
        refused(lambda d=data: pair("X_tr", d, y), "X_tr must")  # type: ignore[misc]
    shuffled = pair("X_tr", DataLoader(whole, batch_size=2, shuffle=True))
    assert torch.equal(shuffled[0], X[shuffled[1]])
    sampled = DataLoader(whole, batch_sampler=[[1, 2], [5]])
    assert pair("X_tr", sampled)[1].tolist() == [1, 2, 5]
    alone = TensorDataset(X)
    for data in (alone, DataLoader(alone, batch_size=2), DataLoader(X, batch_size=2)):  # type: ignore[arg-type]
        assert torch.equal(pair("X_te", data)[0], X)
        assert pair("X_te", data)[1] is None
        assert pair("X_te", data, y)[1] is y
    for texts in (
        Pairs(([1, 2], "a"), ((3, 4), "b")),
        Stream(),
        DataLoader(Stream(), batch_size=2),
    ):
        points, labels = pair("X_tr", texts)
        assert points.shape == (2, 2)
        assert encode(labels, ["a", "b"]).tolist() == [0, 1]
    assert torch.equal(torch.get_rng_state(), state)
    assert pair("X_tr", X, y) == (X, y)


@pytest.mark.parametrize(
    "wrong",
    [
        Pairs(),
        Pairs((1, 2, 3)),
        Pairs({"x": 1}),
        Pairs(None),
        Pairs("text"),
        Pairs(("text", 1)),
        Pairs(([1.0], 1), [1.0]),
        Pairs(([1.0], 1), ([1.0, 2.0], 1)),
        Pairs(([1.0], [1, 2]), ([1.0], [1])),
        Pairs((torch.zeros(2), 1), (torch.zeros(3), 1)),
        Endless(),
        DataLoader(Pairs(), batch_size=2),
        DataLoader(Pairs({"x": 1.0}), batch_size=1),
    ],
)
def test_datasets_of_something_else_are_refused_in_one_sentence(wrong: Any) -> None:
    refused(lambda: pair("X_tr", wrong))
    refused(lambda: numbers("X_tr", wrong), "X_tr must")


def test_what_was_given_is_not_written_to() -> None:
    X = np.ones((2, 2))
    X.flags.writeable = False
    made: Tensor = inputs("X", X, shape=(2,), dtype=torch.float64)
    assert made.sum() == 4


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


def test_threads_may_ask_a_module_at_once() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    both, modes = threading.Barrier(2, timeout=60), []

    def watch(*_: object) -> None:
        both.wait()  # in the middle of the pass of the other
        modes.append([module.training for module in net.modules()])
        both.wait()

    net[0].register_forward_hook(watch)
    ask = partial(predict, "X_tr", net, torch.ones(4, 3), labels=True, like=LIKE)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(ask) for _ in range(2))
        torch.testing.assert_close(first.result(), second.result())
    assert modes == [[True] * 3] * 2


def test_text_stays_objects() -> None:
    long = ["x" * 10**6, *["y"] * 10**4]  # 40 GB as text of NumPy
    assert array(long).dtype == object
    assert array([1, 2]).dtype == np.int64
    with pytest.raises(TypeError, match="y must hold numbers, got text: 'xxxx"):
        numbers("y", long)


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

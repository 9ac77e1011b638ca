"""Odd calls from threads: what users may give by mistake, to what they call most."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from numpy.random import Generator
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

from assessed import make
from chaos.children import Attempt, wrong_refusal
from neural_complexity import Monitor, NCRegularizer, assess, compare
from neural_complexity.workspace import fingerprint

__all__ = ["call_oddly"]

D, M, N, C = 2, 12, 9, 3
DTYPES = ("float16", "float64", "int8", "uint64", "complex64", "bool", "object", "str", "M8[s]")
VALUES = (np.nan, np.inf, -np.inf, 1e308, 1e-320, 1e30, -0.0, 1e16)
STRANGE: tuple[Any, ...] = (None, "", "text", b"bytes", 0, 1.5, True, {}, {"a": [1]}, set(), ())
STRANGE += ([], [[]], [[1], [2, 3]], object(), int, np.array(3.0), pd.NA, range(5), lambda x: x)


def _valid(random: Generator) -> dict[str, Any]:
    """Returns arguments that fit."""
    y = np.arange(M) % C
    X, Z = (random.normal(size=(n, D)) for n in (M, N))
    return {"X_tr": X + 2 * np.eye(C, D)[y], "y_tr": y, "X_te": Z}


def _reshaped(a: Any, random: Generator) -> Any:
    changes: list[Callable[[Any], Any]] = [
        np.ravel, lambda a: a[None], lambda a: a.T, lambda a: a[:0], lambda a: a[:1],
        lambda a: a[..., :0], lambda a: a[:-1], lambda a: np.repeat(a, 2, axis=-1),
        np.zeros_like, lambda a: a[::-1], lambda a: np.ma.masked_array(a, mask=a > 0),
        np.asfortranarray, lambda a: a[:, None, ..., None], lambda a: np.repeat(a, 50, axis=0),
    ]  # fmt: skip
    return changes[random.integers(len(changes))](a)


def _valued(a: Any, random: Generator) -> Any:
    a = a.astype(float)
    if a.size:
        some = random.random(a.shape) < random.choice([0.02, 0.3, 1.0])
        a[some] = VALUES[random.integers(len(VALUES))]
    return a


def _dataset(tensor: torch.Tensor) -> torch.utils.data.Dataset[Any]:
    return torch.utils.data.TensorDataset(tensor)


def _contained(a: Any, random: Generator) -> Any:
    kind = random.integers(14)
    tensor = torch.from_numpy(np.ascontiguousarray(a)).float()
    changes: list[Callable[[], Any]] = [
        a.tolist, lambda: tuple(a.tolist()), lambda: tensor, tensor.half, tensor.bfloat16,
        lambda: tensor.to("meta"), tensor.to_sparse, tensor.requires_grad_,
        lambda: torch.nested.nested_tensor([tensor, tensor[:1]]), lambda: scipy.sparse.csr_array(a),
        lambda: list(tensor), lambda: _dataset(tensor),
        lambda: torch.utils.data.DataLoader(_dataset(tensor), batch_size=4), lambda: iter(a),
    ]  # fmt: skip
    return changes[kind]()


def _framed(a: Any, random: Generator) -> Any:
    frame = pd.DataFrame(a if a.ndim == 2 else np.reshape(a, (len(a), -1)))
    n = len(frame)
    cells = pd.Series(random.choice(["a", "b", "", "c d"], size=n), dtype=object)
    changes: list[Callable[[], Any]] = [
        lambda: frame, lambda: frame.set_axis(["x"] * frame.shape[1], axis=1),
        lambda: frame.set_axis([None, *range(1, frame.shape[1])], axis=1),
        lambda: frame.assign(text=cells.to_numpy()), lambda: frame.astype("category"),
        lambda: frame.assign(when=pd.date_range("2020-01-01", periods=n)),
        lambda: frame.assign(sparse=pd.arrays.SparseArray(np.zeros(n))),
        lambda: frame.assign(nested=[[i] for i in range(n)]), lambda: frame.astype("Float64"),
        lambda: frame.assign(missing=None), lambda: frame.iloc[:, 0], lambda: frame.astype(str),
        lambda: frame.set_axis(pd.MultiIndex.from_product([["a"], range(frame.shape[1])]), axis=1),
        lambda: frame.assign(wide=[1e308, -1e308, *([0.0] * n)][:n] if n else []),
        lambda: frame.assign(span=pd.to_timedelta(np.arange(n), unit="D")),
    ]  # fmt: skip
    return changes[random.integers(len(changes))]()


def _odd(a: Any, random: Generator) -> Any:
    """Returns something in the place of an array."""
    kind = int(random.integers(12))
    try:
        if kind < 2:
            return a.astype(DTYPES[random.integers(len(DTYPES))])
        makers = {2: _reshaped, 3: _reshaped, 4: _valued, 5: _valued, 6: _contained, 7: _contained}
        makers |= {8: _framed, 9: _framed}
        if kind in makers:
            return makers[kind](a, random)
    except (ValueError, TypeError, RuntimeError, IndexError, AssertionError):
        return a  # nobody can make that of it
    return STRANGE[random.integers(len(STRANGE))] if kind == 10 else a


class Shared:
    """Models and NCs that all threads use."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        values = _valid(np.random.default_rng(0))
        X, y = values["X_tr"], values["y_tr"]
        layers = nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, C)
        self.module = nn.Sequential(*layers).train()
        self.models = [LogisticRegression().fit(X, y), self.module, Ridge().fit(X, y)]
        self.nc = make("labels")
        self.monitor = Monitor(self.models[0], X, y)
        self.penalty = NCRegularizer(self.nc)
        self.buffers = self.state()

    def state(self) -> str:
        """Returns what must stay the same of the module."""
        modes = [module.training for module in self.module.modules()]
        return fingerprint(modes, dict(self.module.state_dict()))


def call_oddly(seed: int) -> Attempt:
    """Returns attempts at calls with odd arguments: refused, or finite, and nothing is changed."""
    shared = Shared()
    calls = [_assess, _assess_by_nc, _compare, _check, *[_predict, _penalize] * 12]  # fast ones

    def attempt(number: int) -> Callable[[], str | None]:
        random = np.random.default_rng([seed, number])
        call = calls[number % len(calls)]
        given = _valid(random)
        for name in random.choice(list(given), size=random.integers(1, 3), replace=False):
            given[name] = _odd(given[name], random)
        before = {name: _frozen(thing) for name, thing in given.items()}
        kinds = ", ".join(f"{n} {_kind(t)}" for n, t in given.items())

        def go() -> str | None:
            failure = None
            try:
                value = call(shared, random, given)
                if not math.isfinite(value):
                    failure = f"{call.__name__} returned {value} for {kinds}"
            except Exception as error:
                wrong = wrong_refusal(error)
                failure = wrong and f"{call.__name__}: {wrong} ({kinds})"
            changed = [n for n, thing in given.items() if _frozen(thing) != before[n]]
            if changed:
                failure = f"{call.__name__} changed {', '.join(changed)} ({kinds})"
            if failure is None and shared.state() != shared.buffers:
                failure = f"the module is not as it was, after {call.__name__}"
                shared.module.train()
                shared.buffers = shared.state()
            return failure

        return go

    return attempt


def _frozen(thing: Any) -> str:
    """Returns what tells whether something was changed."""
    try:
        if isinstance(thing, pd.DataFrame | pd.Series):
            return f"{thing.to_csv()}{thing.dtypes if thing.ndim > 1 else thing.dtype}"
        if isinstance(thing, torch.Tensor) and (thing.is_nested or thing.is_meta):
            return str(type(thing))
        if isinstance(thing, np.ndarray | torch.Tensor | list | tuple):
            return fingerprint(thing)
        return str(type(thing))
    except (ValueError, TypeError, RuntimeError, NotImplementedError):
        return str(type(thing))


def _kind(thing: Any) -> str:
    try:
        return f"{type(thing).__name__} {tuple(thing.shape)} {getattr(thing, 'dtype', '')}"
    except (AttributeError, TypeError, RuntimeError):  # a nested tensor has no shape
        return type(thing).__name__


def _model(shared: Shared, random: Generator) -> Any:
    return shared.models[random.integers(len(shared.models))]


def _assess(shared: Shared, random: Generator, given: dict[str, Any]) -> float:
    found = assess(_model(shared, random), *given.values())
    return found.gap + found.loss_te


def _assess_by_nc(shared: Shared, random: Generator, given: dict[str, Any]) -> float:
    found = assess(_model(shared, random), *given.values(), nc=shared.nc)
    return found.gap + found.loss_te


def _compare(shared: Shared, random: Generator, given: dict[str, Any]) -> float:
    models = {"a": shared.models[0], "b": _model(shared, random)}
    return sum(compare(models, *given.values()).regret.values())


def _check(shared: Shared, random: Generator, given: dict[str, Any]) -> float:
    return copy.copy(shared.monitor).check(given["X_te"]).error


def _predict(shared: Shared, random: Generator, given: dict[str, Any]) -> float:
    X, y, Z = (t[None] if _dense(t) else t for t in _tensors(given))
    H, G = (torch.from_numpy(random.normal(size=(1, n, C))).float() for n in (M, N))
    return float(shared.nc.predict(X, y, H, Z, G).sum())


def _dense(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) and not thing.is_nested


def _penalize(shared: Shared, random: Generator, given: dict[str, Any]) -> float:
    # A module of its own: one that several threads train at once is nobody's to protect.
    return float(shared.penalty(copy.deepcopy(shared.module), *_tensors(given)))


def _tensors(given: dict[str, Any]) -> list[Any]:
    """Returns arrays as tensors, inputs in the precision of the module, and all else as it is."""
    made = []
    for name, one in given.items():
        plain = isinstance(one, np.ndarray) and one.dtype.kind in "fiub"
        thing = torch.from_numpy(np.ascontiguousarray(one)) if plain else one
        floats = isinstance(thing, torch.Tensor) and not thing.is_complex() and name != "y_tr"
        made.append(thing.float() if floats else thing)
    return made

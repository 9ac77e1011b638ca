import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss
from torch import Tensor

from neural_complexity.beliefs import Histogram
from neural_complexity.model.kernel_regression import (
    REGRESSIONS,
    Regressions,
    regress,
    relevance,
    solve,
    stack_labels,
    stack_numbers,
)
from neural_complexity.model.table_network import describe_cells

close = torch.testing.assert_close
UNWEIGHTED = 3 * 7  # regressions of values whose weights do not depend on targets


def draw(seed: int = 0, M: int = 14, N: int = 5) -> tuple[Tensor, Tensor]:
    """Returns cells, (2, M + N, 3, 3), and targets, (2, M, 2), that depend on one feature."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(2, M + N, 3, generator=generator, dtype=torch.double)
    X[..., 2] = X[..., 2].round()
    T = torch.stack([X[:, :M, 0], X[:, :M, 0].cos()], dim=-1)
    return describe_cells(X[:, :M], X[:, M:]), T


@settings(max_examples=10)
@given(st.integers(0, 99), st.integers(0, 13))
def test_a_training_row_is_predicted_as_if_it_were_not_there(seed: int, row: int) -> None:
    cells, T = draw(seed)
    rest = [i for i in range(14) if i != row]
    whole = regress(cells, T)
    # The row moves to the test rows; its cells stay as they are.
    left = regress(cells[:, [*rest, row]], T[:, rest])
    close(whole.means[:, row, :, :UNWEIGHTED], left.means[:, 13, :, :UNWEIGHTED])
    close(whole.variances[:, row, :UNWEIGHTED], left.variances[:, 13, :UNWEIGHTED])


def test_solved_regressions_predict_any_rows_as_if_solved_with_them() -> None:
    cells, T = draw()
    whole, solved = regress(cells, T), list(solve(cells[:, :14], T))
    for rows in ([14], [18, 15]):
        some = regress(cells[:, [*range(14), *rows]], T, solved)
        for name in ("means", "variances"):
            close(getattr(some, name)[:, 14:], getattr(whole, name)[:, rows])
    bare = regress(cells, T, variances=False)
    close(bare.means, whole.means)
    assert bare.variances.shape == (2, 19, 0)


def test_regressions_are_gaussian_processes() -> None:
    cells, T = draw()
    found = regress(cells, T)
    assert found.means.shape == (2, 19, 2, REGRESSIONS)
    # The second kernel, with the second noise: values, all of which count alike.
    f = torch.cat([cells[0, ..., 0], cells[0, ..., 2]], dim=-1).numpy() / 3**0.5
    kernel = RBF(0.5**0.5, "fixed") + ConstantKernel(1.0, "fixed")
    process = GaussianProcessRegressor(kernel, alpha=0.3).fit(f[:14], T[0].numpy())
    mean, std = process.predict(f[14:], return_std=True)
    close(found.means[0, 14:, :, 4], torch.from_numpy(mean))
    close(found.variances[0, 14:, 4], torch.from_numpy(std[:, 0] ** 2 + 0.3))


def test_features_that_explain_targets_are_relevant() -> None:
    cells, T = draw(M=200)
    cells[0, :, 1] = 0.0  # a constant feature
    useful = relevance(cells, T[..., :1])
    assert (useful[:, 0] > 0.7).all()
    assert (useful[:, 1:] < 0.1).all()
    cells[..., 1, :] = 0
    assert (relevance(cells, T)[:, 1] == 0).all()


def test_labels_are_as_likely_as_they_turn_out_to_be() -> None:
    X, y = load_iris(return_X_y=True)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    X_all, Y = torch.from_numpy(X)[order][None], torch.from_numpy(y)[order]
    T = torch.nn.functional.one_hot(Y[None, :60]).double()
    found = regress(describe_cells(X_all[:, :60], X_all[:, 60:]), T - 1 / 3)
    logs, likely = stack_labels(found.means + 1 / 3, T)
    p = logs[0, 60:].exp()
    close(p.sum(dim=-1), torch.ones(90, dtype=torch.double))
    assert likely.shape == (1, REGRESSIONS)
    forest = RandomForestClassifier(random_state=0).fit(X_all[0, :60], Y[:60])
    usual = log_loss(Y[60:], forest.predict_proba(X_all[0, 60:]))
    assert log_loss(Y[60:], p) < usual


def test_numbers_are_believed_in_with_their_noise() -> None:
    cells, T = draw(M=100, N=400)
    noise = 0.3 * torch.randn(2, 100, 1, generator=torch.Generator().manual_seed(1)).double()
    T = T[..., :1] + noise
    edges = Histogram.standard_edges(200).double()
    logs, likely = stack_numbers(regress(cells, T), T, edges)
    p = logs.exp()
    close(p.sum(dim=-1), torch.ones(2, 500, dtype=torch.double))
    assert likely.shape == (2, REGRESSIONS)
    centres = (edges[1:] + edges[:-1]) / 2
    mean = p @ centres
    std = (p @ centres.square() - mean.square()).sqrt()
    assert std[:, 100:].median().item() == pytest.approx(0.3, abs=0.12)


def test_the_better_regression_has_the_say() -> None:
    T = torch.nn.functional.one_hot(torch.arange(40)[None] % 2).double()
    right, wrong = 0.9 * T + 0.05, 0.95 - 0.9 * T
    means = torch.stack([right, wrong], dim=-1)
    logs, likely = stack_labels(torch.cat([means, means[:, :1]], dim=1), T)
    assert likely[0, 0] > likely[0, 1]
    assert logs[0, 40, 0] > -0.05
    numbers = Regressions(means[:, :, :1], torch.ones(1, 40, 2, dtype=torch.double))
    edges = Histogram.standard_edges(64).double()
    p = stack_numbers(numbers, T[..., :1], edges)[0].exp()
    assert (p[0, 0] @ ((edges[1:] + edges[:-1]) / 2)).item() == pytest.approx(0.95, abs=0.1)


def test_a_class_that_is_not_there_changes_nothing() -> None:
    T = torch.nn.functional.one_hot(torch.arange(10)[None] % 2, 3).double()
    means = torch.rand(1, 12, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    more, few = stack_labels(means, T)[0], stack_labels(means[:, :, :2], T[..., :2])[0]
    close(more[..., :2], few)
    assert (more[..., 2] == -torch.inf).all()

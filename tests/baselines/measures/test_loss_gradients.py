import pytest
import torch

from measured import classes_of_points, classifiers, linear
from neural_complexity.baselines.measures import loss_gradients
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.task import Task

Trio = tuple[BatchedLearner, BatchedLearner, Task]


@pytest.fixture
def trio() -> Trio:
    task = classes_of_points(B=2)
    return *classifiers(task, steps=5), task


def point_gradients(h: BatchedLearner, task: Task, b: int) -> torch.Tensor:
    """Returns the gradient of each point's loss, (M, n), one by one."""
    one, rows = h.one(b), []
    parameters = list(one.parameters())
    for x, y in zip(task.X_tr[b], task.Y_tr[b], strict=True):
        loss = cross_entropy(one(x.unsqueeze(0)).unsqueeze(0), y.view(1, 1)).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows)


def test_losses_are_means_over_training_points(trio: Trio) -> None:
    h, initial, task = trio
    H = h(task.X_tr)
    loss, error = loss_gradients.training_loss, loss_gradients.training_error
    torch.testing.assert_close(loss(h, initial, task), cross_entropy(H, task.Y_tr).mean(dim=1))
    torch.testing.assert_close(error(h, initial, task), zero_one(H, task.Y_tr).mean(dim=1))


def test_gradient_measures_are_those_of_gradients_one_by_one(trio: Trio) -> None:
    h, initial, task = trio
    for b in range(2):
        g, w = point_gradients(h, task, b), torch.cat([p.flatten() for p in h.one(b).parameters()])
        expected = {
            "gradient_noise": g.var(dim=0, correction=0).sum(),
            "gradient_norm": g.mean(dim=0).square().sum(),
            "fisher_rao_norm": (g @ w).square().mean(),
        }
        for name, value in expected.items():
            found = getattr(loss_gradients, name)(h, initial, task)[b]
            torch.testing.assert_close(found, value.detach(), msg=name)


def test_gradients_in_parts_are_the_same(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    before = loss_gradients.gradient_noise(*trio)
    monkeypatch.setattr(loss_gradients, "NUMBERS", 700)
    torch.testing.assert_close(loss_gradients.gradient_noise(*trio), before)


def test_noise_at_initialization_is_that_of_the_initial_learners(trio: Trio) -> None:
    h, initial, task = trio
    start = loss_gradients.gradient_noise_at_initialization(h, initial, task)
    assert torch.equal(start, loss_gradients.gradient_noise(initial, initial, task))


def test_linear_networks_have_closed_forms() -> None:
    task = classes_of_points(B=2)
    W, b = torch.randn(2, 3, 4), torch.randn(2, 3)
    h = linear(W, b)
    H = task.X_tr @ W.mT + b.unsqueeze(1)
    residual = H.softmax(dim=-1) - torch.nn.functional.one_hot(task.Y_tr, 3)  # (B, M, C)
    # A linear network is homogeneous in its parameters: g' w = (p - y)' h(x).
    expected = (residual * H).sum(dim=-1).square().mean(dim=1)
    torch.testing.assert_close(loss_gradients.fisher_rao_norm(h, h, task), expected)
    expected = (residual @ W).square().sum(dim=-1).mean(dim=1)
    torch.testing.assert_close(loss_gradients.input_gradient(h, h, task), expected)


def test_one_more_step_lowers_the_loss_as_its_slope_says(trio: Trio) -> None:
    decrease = loss_gradients.loss_decrease(*trio)
    slope = 0.01 * loss_gradients.gradient_norm(*trio)
    assert decrease.tolist() == pytest.approx(slope.tolist(), rel=0.1)

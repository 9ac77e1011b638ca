from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import evaluate, fit
from neural_complexity.learners.networks import image_mlp, mlp, pooled, resnet
from neural_complexity.losses import cross_entropy
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

SHAPE, CLASSES = (2, 9, 8), 3
small = partial(resnet, SHAPE, CLASSES, width=3, blocks=(1, 2, 1))


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_papers_learner_has_two_hidden_layers_of_forty() -> None:
    shapes = [tuple(p.shape) for p in mlp(1, (40, 40), 1).parameters()]
    assert shapes == [(40, 1), (40,), (40, 40), (40,), (1, 40), (1,)]


def test_without_hidden_layers_it_is_linear() -> None:
    net = mlp(3, (), 2, activation=nn.Tanh)
    a, b = torch.randn(1, 3), torch.randn(1, 3)
    zero = net(torch.zeros(1, 3))
    torch.testing.assert_close(net(a + b) - zero, net(a) + net(b) - 2 * zero)


def test_perceptrons_of_images_may_have_noise() -> None:
    network = image_mlp((1, 2, 2), (6, 5), 3, noise=lambda _: nn.Dropout(0.5))
    assert [type(layer).__name__ for layer in network] == [
        "Flatten",
        *("Linear", "ReLU", "Dropout") * 2,
        "Linear",
    ]
    X = torch.randn(50, 1, 2, 2)
    assert not torch.equal(network(X), network(X))
    assert torch.equal(network.eval()(X), network(X))
    assert count(network) == count(image_mlp((1, 2, 2), (6, 5), 3))


def test_resnet18_has_as_many_parameters_and_layers_as_is_known() -> None:
    network = resnet((3, 32, 32), 10)
    assert count(network) == 11_173_962  # the variant for 32 x 32 pixels, for CIFAR-10
    counted = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    around = [m for m in counted if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert (len(counted) - len(around), len(around)) == (18, 3)


def test_the_stages_of_resnet18_halve_the_image_and_double_the_filters() -> None:
    network = resnet((3, 32, 32), 10)
    x, shapes = torch.randn(1, 3, 32, 32), []
    for layer in network.eval():
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    stages = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    assert shapes == [stages[0]] * 3 + [s for s in stages for _ in range(2)] + [
        (512, 1, 1),
        (512,),
        (10,),
    ]


@given(
    channels=st.integers(1, 3),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    classes=st.integers(1, 5),
    filters=st.integers(1, 3),
    blocks=st.lists(st.integers(1, 2), min_size=1, max_size=3),
    dropout=st.sampled_from([0.0, 0.3]),
)
def test_residual_networks_take_images_of_any_size(
    channels: int,
    height: int,
    width: int,
    classes: int,
    filters: int,
    blocks: list[int],
    dropout: float,
) -> None:
    network = resnet(
        (channels, height, width), classes, width=filters, blocks=blocks, dropout=dropout
    )
    out = network(torch.randn(2, channels, height, width))
    assert out.shape == (2, classes)
    assert out.isfinite().all()


def test_without_what_goes_through_a_block_is_the_identity_on_what_went_before() -> None:
    block = small()[5]  # the second of its stage: nothing stands in the way around
    nn.init.zeros_(block.through[-1].weight)  # type: ignore[union-attr,index]
    x = torch.rand(2, 6, 5, 4)
    assert torch.equal(block(x), x)


def separate(h: BatchedLearner, make: Callable[[], nn.Module], b: int) -> BatchedLearner:
    state = {name: value[b : b + 1].detach().clone() for name, value in h.state().items()}
    return BatchedLearner(make(), state)


def shrink(_: object, snapshot: Snapshot) -> Tensor:
    return snapshot.H_te.square().mean(dim=(1, 2))


@pytest.mark.parametrize("regularizer", [None, shrink])
def test_batched_residual_networks_equal_separate_ones_and_plain_pytorch(
    regularizer: Callable[[object, Snapshot], Tensor] | None,
) -> None:
    X_tr, X_te = torch.randn(2, 6, *SHAPE), torch.randn(2, 5, *SHAPE)
    task = Task(X_tr, torch.randint(3, (2, 6)), X_te, torch.randint(3, (2, 5)))
    h = stack(small, 2, stream(0, "h"))
    modules = [h.one(b) for b in range(2)]
    alone = [separate(h, small, b) for b in range(2)]
    fit(h, task, loss=cross_entropy, steps=3, lr=0.1, regularizer=regularizer)
    for b, module in enumerate(modules):
        row = task[b : b + 1]
        fit(alone[b], row, loss=cross_entropy, steps=3, lr=0.1, regularizer=regularizer)
        descent = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            value = nn.functional.cross_entropy(module(X_tr[b]), task.Y_tr[b])
            if regularizer is not None:
                value = value + module(X_te[b]).square().mean()
            descent.zero_grad()
            value.backward()
            descent.step()
        plain = dict([*module.named_parameters(), *module.named_buffers()])
        for name, value in h.state().items():  # the running statistics too
            torch.testing.assert_close(value[b], alone[b].state()[name][0])
            torch.testing.assert_close(value[b], plain[name])
        H_te = module.eval()(X_te[b])
        torch.testing.assert_close(evaluate(h, task).H_te[b], H_te)
        torch.testing.assert_close(evaluate(alone[b], row).H_te[0], H_te)
    # Evaluation uses running statistics: a point's prediction does not depend on the others.
    h.eval()
    torch.testing.assert_close(h(X_te)[:, :2], h(X_te[:, :2]))
    h.train()
    assert not torch.allclose(h(X_te)[:, :2], h(X_te[:, :2]))


@given(copies=st.integers(1, 4), points=st.integers(1, 5))
def test_pooled_networks_are_copies_whose_logits_are_averaged(copies: int, points: int) -> None:
    def make() -> nn.Module:
        return mlp(3, (4,), 2)

    network = pooled(make, copies)
    assert count(network) == copies * count(make())
    X = torch.randn(points, 3)
    outs = [one(X).detach() for one in network.children()]
    torch.testing.assert_close(network(X).detach(), sum(outs, torch.zeros(())) / copies)
    assert len(torch.stack(outs).unique(dim=0)) == copies  # each with its own parameters


def test_pooled_residual_networks_can_be_learners() -> None:
    make = partial(pooled, small, 2)
    task = Task(
        torch.randn(2, 6, *SHAPE),
        torch.randint(3, (2, 6)),
        torch.randn(2, 5, *SHAPE),
        torch.randint(3, (2, 5)),
    )
    h = stack(make, 2, stream(0, "h"))
    before = evaluate(h, task)
    fit(h, task, loss=cross_entropy, steps=10, lr=0.1)
    loss, start = (cross_entropy(s.H_tr, s.Y_tr).mean(dim=1) for s in (evaluate(h, task), before))
    assert (loss < start).all()
    assert (h.state()["1.1.num_batches_tracked"] == 10).all()


def test_our_networks_count_by_what_they_are_made_of() -> None:
    def modes(make: Callable[[], nn.Module]) -> bool:
        return stack(make, 2, stream(0, "h")).has_modes

    assert not modes(partial(pooled, partial(mlp, 1, (4,), 1), 2))
    assert modes(partial(pooled, small, 2))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (partial(resnet, SHAPE, 3, width=0), "width must be at least 1, got 0"),
        (partial(resnet, SHAPE, 3, blocks=()), r"1 block in each stage, got \(\)"),
        (partial(resnet, SHAPE, 3, blocks=(2, 0)), r"1 block in each stage, got \(2, 0\)"),
        (partial(pooled, small, 0), "copies must be at least 1, got 0"),
    ],
)
def test_networks_of_nothing_are_refused(build: Callable[[], nn.Module], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()

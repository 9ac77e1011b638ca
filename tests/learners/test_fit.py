from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import convolutional, flat, holds_for_seeds
from neural_complexity.learners import fit as fit_module
from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import (
    Learning,
    Recipe,
    Trajectory,
    diverged,
    evaluate,
    fit,
    train_learners,
    unroll,
    usable_rows,
    warmup_cosine,
)
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy, squared_error, zero_one
from neural_complexity.points import Points, indexed, raw
from neural_complexity.regularizers.penalties import oracle_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot


def shrink(h: object, snapshot: Snapshot) -> Tensor:
    return snapshot.H_te.square().mean(dim=(1, 2))


def learners(recipe: Recipe, rows: slice | None = None) -> BatchedLearner:
    h = stack(recipe.make, 6, stream(0, "h"))
    if rows is None:
        return h
    state = {name: value[rows].detach().clone() for name, value in h.state().items()}
    return BatchedLearner(recipe.make(), state)


def test_learners_trained_together_equal_learners_trained_alone(task: Task, recipe: Recipe) -> None:
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        for regularizer in (None, shrink):
            options = {"loss": squared_error, "steps": 4, "lr": 0.05, "optimizer": optimizer}
            together = learners(recipe)
            fit(together, task, regularizer=regularizer, **options)  # type: ignore[arg-type]
            for b in range(len(task)):
                row = slice(b, b + 1)
                alone = learners(recipe, row)
                fit(alone, task[row], regularizer=regularizer, **options)  # type: ignore[arg-type]
                for key, value in alone.state().items():
                    torch.testing.assert_close(together.state()[key][row], value)


def test_it_descends_the_training_loss_plus_the_penalty(task: Task, recipe: Recipe) -> None:
    def step(regularizer: object) -> Tensor:
        h = learners(recipe)
        before = h.state()["0.weight"].detach().clone()
        fit(h, task, loss=squared_error, steps=1, lr=0.1, regularizer=regularizer)  # type: ignore[arg-type]
        return (before - h.state()["0.weight"]).detach() / 0.1

    h = learners(recipe)
    loss = squared_error(h(task.X_tr), task.Y_tr).mean(dim=1).sum()
    (plain,) = torch.autograd.grad(loss, [h.state()["0.weight"]])
    (penalty,) = torch.autograd.grad(
        h(task.X_te).square().mean(dim=(1, 2)).sum(), [h.state()["0.weight"]]
    )
    torch.testing.assert_close(step(None), plain)
    torch.testing.assert_close(step(shrink), plain + penalty)


def test_observers_see_every_step_and_the_end_and_change_nothing(
    task: Task, recipe: Recipe
) -> None:
    seen: list[tuple[int, Snapshot]] = []
    watched, plain = learners(recipe), learners(recipe)
    options = {"loss": squared_error, "steps": 5, "lr": 0.05}
    fit(watched, task, observe=lambda *args: seen.append(args), **options)  # type: ignore[arg-type]
    fit(plain, task, **options)  # type: ignore[arg-type]
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4, 5]
    assert not any(s.H_tr.requires_grad or s.H_te.requires_grad for _, s in seen)
    assert torch.equal(seen[0][1].H_te, learners(recipe)(task.X_te))
    assert torch.equal(seen[-1][1].H_te, watched(task.X_te))  # after the last update
    for key, value in plain.state().items():
        assert torch.equal(watched.state()[key], value)


def test_a_diverging_learner_leaves_the_others_alone(task: Task, recipe: Recipe) -> None:
    Y_tr = task.Y_tr.clone()
    Y_tr[2] = 1e200
    broken, whole = learners(recipe), learners(recipe)
    fit(broken, Task(task.X_tr, Y_tr, task.X_te, task.Y_te), loss=squared_error, steps=4, lr=0.05)
    fit(whole, task, loss=squared_error, steps=4, lr=0.05)
    others = [0, 1, 3, 4, 5]
    assert not broken.state()["0.weight"][2].isfinite().all()
    assert torch.equal(broken.state()["0.weight"][others], whole.state()["0.weight"][others])


def test_no_steps_change_nothing(task: Task, recipe: Recipe) -> None:
    h = learners(recipe)
    fit(h, task, loss=squared_error, steps=0, lr=0.05)
    assert torch.equal(h.state()["0.weight"], learners(recipe).state()["0.weight"])


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 20), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.Linear(20, 1))


def test_observers_see_learners_without_noise_and_with_fixed_statistics(task: Task) -> None:
    h = stack(noisy, len(task), stream(0, "h"))
    seen: list[Snapshot] = []

    def look(_: int, snapshot: Snapshot) -> None:
        seen.append(snapshot)
        assert torch.equal(snapshot.H_te, evaluate(h, task).H_te)  # twice the same
        assert h.training

    fit(h, task, loss=squared_error, steps=3, lr=0.05, regularizer=shrink, observe=look)
    assert len(seen) == 4
    assert torch.equal(h.eval()(task.X_te), seen[-1].H_te)
    h.train()
    assert not torch.equal(h(task.X_te), h(task.X_te))  # in training there is noise


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.dropout(self.layer(x), training=self.training)
        return out


def test_modes_are_found_and_unknown_modules_count(recipe: Recipe) -> None:
    assert not stack(recipe.make, 2, stream(0, "h")).has_modes
    assert stack(noisy, 2, stream(0, "h")).has_modes
    assert stack(Plain, 2, stream(0, "h")).has_modes


def test_unrolled_learners_are_fitted_learners(task: Task, recipe: Recipe) -> None:
    fitted, start = learners(recipe), learners(recipe)
    learning = Learning(loss=squared_error, steps=4, lr=0.05)
    unrolled = unroll(start.placed(), task, learning, steps=4, regularizer=shrink)
    fit(fitted, task, learning, regularizer=shrink)
    for name, value in fitted.state().items():
        torch.testing.assert_close(unrolled.state()[name], value)
    assert torch.equal(start.state()["0.weight"], learners(recipe).state()["0.weight"])


def test_gradients_flow_through_training(task: Task, recipe: Recipe) -> None:
    h, learning = learners(recipe).placed(), Learning(loss=squared_error, lr=0.05)
    some = task[:2]
    h = h.moved(p[:2].detach().requires_grad_() for p in h.parameters())

    def trained(weight: Tensor, *parameters: Tensor) -> Tensor:
        def penalty(_: object, snapshot: Snapshot) -> Tensor:
            return weight * snapshot.H_te.square().mean(dim=(1, 2))

        end = unroll(h.moved(parameters), some, learning, steps=3, regularizer=penalty)
        return squared_error(end(some.X_te), some.Y_te).mean(dim=1)

    weight = torch.tensor(0.3, requires_grad=True)
    assert torch.autograd.gradcheck(trained, (weight, *h.parameters()), eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("make", [flat, convolutional])
def test_learners_of_images_trained_together_equal_learners_trained_alone(
    few_shot: FewShot, make: Callable[[], nn.Module]
) -> None:
    task = few_shot.sample(6, stream(0, "x"))
    recipe = Recipe(make=make, loss=cross_entropy, steps=4, lr=0.5)
    for regularizer in (None, shrink):
        together = learners(recipe)
        fit(together, task, loss=cross_entropy, steps=4, lr=0.5, regularizer=regularizer)
        for b in range(len(task)):
            row = slice(b, b + 1)
            alone = learners(recipe, row)
            fit(alone, task[row], loss=cross_entropy, steps=4, lr=0.5, regularizer=regularizer)
            for key, value in alone.state().items():
                torch.testing.assert_close(together.state()[key][row], value)


@pytest.mark.trains
@pytest.mark.parametrize("make", [flat, convolutional])
def test_learners_of_images_learn_their_labels(
    few_shot: FewShot, make: Callable[[], nn.Module]
) -> None:
    def learn(seed: int) -> bool:
        task = few_shot.sample(24, stream(seed, "x"))
        h = stack(make, 24, stream(seed, "h"))
        fit(h, task, loss=cross_entropy, steps=60, lr=0.05, optimizer=torch.optim.Adam)
        train, test = zero_one(h(task.X_tr), task.Y_tr), zero_one(h(task.X_te), task.Y_te)
        # By chance two in three are wrong; a few learners begin with units that stay at zero.
        return bool(train.mean() < 0.05 and test.mean() < 0.5)

    holds_for_seeds(learn)


@dataclass(frozen=True)
class Minibatches:
    """Draws some of the points of whole tasks at each step."""

    store: Tensor  # (inputs, D)
    Y: Tensor  # (B, inputs), of each task
    train_points: int
    test_points: int
    loaded: bool = True  # whether inputs are values

    def __len__(self) -> int:
        return len(self.Y)

    def __call__(self, step: int) -> Task:
        B, inputs = self.Y.shape
        order = torch.rand(B, inputs, generator=stream(7, step)).argsort(dim=1)
        chosen = order[:, : self.train_points + self.test_points]
        X, Y = indexed(chosen, self.store.__getitem__), self.Y.gather(1, chosen)
        M = self.train_points
        task = Task(X[:, :M], Y[:, :M], X[:, M:], Y[:, M:])
        return task.loaded() if self.loaded else task

    def row(self, b: int) -> "Rows":
        return Rows(self, b)

    def by_index(self) -> "Minibatches":
        return replace(self, loaded=False)


@dataclass(frozen=True)
class Rows:
    """One of the tasks by itself."""

    whole: Minibatches
    b: int

    def __len__(self) -> int:
        return 1

    def __call__(self, step: int) -> Task:
        return self.whole(step)[self.b : self.b + 1]


@dataclass(frozen=True)
class Later:
    """Minibatches from a later step on."""

    batches: Minibatches
    start: int

    def __len__(self) -> int:
        return len(self.batches)

    def __call__(self, step: int) -> Task:
        return self.batches(self.start + step)


def minibatches(B: int = 3, M: int = 4, N: int = 3, seed: int = 0) -> Minibatches:
    generator = stream(seed, "minibatches")
    store = torch.randn(11, 2, generator=generator, dtype=torch.float64)
    return Minibatches(store, torch.randint(3, (B, 11), generator=generator), M, N)


def classifier() -> nn.Module:
    return mlp(2, (6,), 3)


def modal() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def classifiers(B: int = 3, make: Callable[[], nn.Module] = classifier) -> BatchedLearner:
    return stack(make, B, stream(0, "classifiers"))


def assert_equal_states(a: BatchedLearner, b: BatchedLearner) -> None:
    for name, value in b.state().items():
        torch.testing.assert_close(a.state()[name], value)


def assert_trained_as(h: BatchedLearner, b: int, module: nn.Module) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        torch.testing.assert_close(h.state()[name][b], tensor)


def plain_value(module: nn.Module, task: Task, b: int, weight: float) -> Tensor:
    """What a step descends, as anyone would write it."""
    value = nn.functional.cross_entropy(module(task.X_tr[b]), task.Y_tr[b])
    return value + weight * module(task.X_te[b]).square().mean() if weight else value


momentum = partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1, foreach=True)
few = st.integers(1, 4)


@given(B=few, M=few, N=few, steps=st.integers(0, 4), weight=st.sampled_from([0, 1]))
def test_minibatches_are_trained_on_as_in_plain_pytorch(
    B: int, M: int, N: int, steps: int, weight: int
) -> None:
    batches, h = minibatches(B, M, N), classifiers(B)
    modules = [h.one(b) for b in range(B)]
    options: dict[str, Any] = {"loss": cross_entropy, "steps": steps, "lr": 0.3}
    options |= {"optimizer": momentum, "regularizer": shrink if weight else None}
    fit(h, batches, **options)
    for b, module in enumerate(modules):
        descent = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9, weight_decay=0.1)
        for step in range(steps):
            descent.zero_grad()
            plain_value(module, batches(step), b, weight).backward()
            descent.step()
        assert_trained_as(h, b, module)


@pytest.mark.parametrize("sharpness", [0.0, 0.1])
@pytest.mark.parametrize("make", [classifier, modal])
def test_minibatches_together_equal_minibatches_alone(
    make: Callable[[], nn.Module], sharpness: float
) -> None:
    batches, together = minibatches(), classifiers(3, make)
    alone = [
        BatchedLearner(make(), {n: v[b : b + 1].detach().clone() for n, v in t.items()})
        for b in range(3)
        for t in [together.state()]
    ]
    options: dict[str, Any] = {"loss": cross_entropy, "steps": 4, "lr": 0.3}
    options |= {"optimizer": momentum, "regularizer": shrink, "sharpness": sharpness}
    fit(together, batches, **options)
    for b, h in enumerate(alone):
        fit(h, batches.row(b), **options)
        for name, value in h.state().items():
            torch.testing.assert_close(together.state()[name][b : b + 1], value)


@given(B=few, M=few, N=few, seed=st.integers(0, 100))
def test_learners_of_points_are_learners_of_their_values(B: int, M: int, N: int, seed: int) -> None:
    batches = minibatches(B, M, N, seed)
    options: dict[str, Any] = {"loss": cross_entropy, "steps": 3, "lr": 0.3, "regularizer": shrink}
    seen, asked = classifiers(B), classifiers(B)
    snapshots: dict[str, list[Snapshot]] = {"seen": [], "asked": []}
    fit(seen, batches, observe=lambda _, s: snapshots["seen"].append(s), **options)
    fit(asked, batches.by_index(), observe=lambda _, s: snapshots["asked"].append(s), **options)
    assert_equal_states(asked, seen)
    for a, b in zip(snapshots["asked"], snapshots["seen"], strict=True):
        assert isinstance(a.X_te, Points)  # the store's inputs are not carried along
        torch.testing.assert_close(a.X_te.values(), b.X_te)
        torch.testing.assert_close(a.H_te, b.H_te)


@pytest.mark.parametrize("make", [classifier, modal])
def test_observers_of_minibatches_see_that_of_the_step_and_change_nothing(
    make: Callable[[], nn.Module],
) -> None:
    batches = minibatches()
    watched, plain = classifiers(3, make), classifiers(3, make)
    options: dict[str, Any] = {"loss": cross_entropy, "steps": 4, "lr": 0.3, "regularizer": shrink}
    steps = []

    def look(step: int, snapshot: Snapshot) -> None:
        steps.append(step)
        torch.testing.assert_close(snapshot.H_te, evaluate(watched, batches(step)).H_te)
        if make is modal:  # nothing of the step has happened yet, a look at its inputs included
            first = 2 * step  # passes, one for each set
            assert (watched.state()["1.num_batches_tracked"] == first).all()
        assert torch.equal(snapshot.X_tr, batches(step).X_tr)
        assert not snapshot.H_tr.requires_grad

    fit(watched, batches, observe=look, **options)
    fit(plain, batches, **options)
    assert steps == [0, 1, 2, 3, 4]
    assert_equal_states(watched, plain)


@given(radius=st.floats(1e-3, 2), steps=st.integers(1, 3), weight=st.sampled_from([0, 1]), B=few)
def test_sharpness_is_that_of_the_textbook_for_each_learner(
    radius: float, steps: int, weight: int, B: int
) -> None:
    batches, h = minibatches(B), classifiers(B)
    modules = [h.one(b) for b in range(B)]
    regularizer = shrink if weight else None
    fit(
        h,
        batches,
        loss=cross_entropy,
        steps=steps,
        lr=0.3,
        optimizer=momentum,
        sharpness=radius,
        regularizer=regularizer,
    )
    for b, module in enumerate(modules):
        sam(module, batches, b, radius=radius, steps=steps, weight=weight)
        assert_trained_as(h, b, module)


def sam(
    module: nn.Module, batches: Minibatches, b: int, *, radius: float, steps: int, weight: float
) -> None:
    """Foret et al. (2021), Algorithm 1, with statistics of the first pass only."""
    parameters = list(module.parameters())
    descent = torch.optim.SGD(parameters, lr=0.3, momentum=0.9, weight_decay=0.1)
    for step in range(steps):
        descent.zero_grad()
        plain_value(module, batches(step), b, weight).backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        buffers = [t.clone() for t in module.buffers()]
        with torch.no_grad():
            ascents = [radius * g / norm for g in gradients]
            for parameter, ascent in zip(parameters, ascents, strict=True):
                parameter.add_(ascent)
        descent.zero_grad()
        plain_value(module, batches(step), b, weight).backward()
        with torch.no_grad():
            for parameter, ascent in zip(parameters, ascents, strict=True):
                parameter.sub_(ascent)
            for now, then in zip(module.buffers(), buffers, strict=True):
                now.copy_(then)
        descent.step()


def test_statistics_are_not_taken_uphill() -> None:
    batches, h = minibatches(), classifiers(3, modal)
    modules = [h.one(b) for b in range(3)]
    options: dict[str, Any] = {"loss": cross_entropy, "steps": 3, "lr": 0.3, "optimizer": momentum}
    fit(h, batches, sharpness=0.5, **options)
    for b, module in enumerate(modules):
        sam(module, batches, b, radius=0.5, steps=3, weight=0)
        assert_trained_as(h, b, module)
    assert (h.state()["1.num_batches_tracked"] == 3).all()


def test_without_sharpness_it_is_the_plain_step_and_towards_it_the_limit() -> None:
    ends = []
    for radius in (0.0, None, 1e-9, 0.5):
        h = classifiers()
        more = {} if radius is None else {"sharpness": radius}
        fit(h, minibatches(), loss=cross_entropy, steps=3, lr=0.3, **more)  # type: ignore[arg-type]
        ends.append(h.state()["0.weight"])
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[2], ends[0])
    assert not torch.allclose(ends[3], ends[0])


def test_sharp_learners_without_a_slope_stay_and_diverging_ones_leave_the_others_alone(
    task: Task, recipe: Recipe
) -> None:
    Y_tr = task.Y_tr.clone()
    Y_tr[2] = 1e200
    Y_tr[4] = learners(recipe)(task.X_tr)[4].detach()  # learned already
    ends = []
    for tasks in (task, Task(task.X_tr, Y_tr, task.X_te, task.Y_te)):
        h = learners(recipe)
        fit(h, tasks, loss=squared_error, steps=3, lr=0.05, sharpness=10.0)
        ends.append(h.state()["0.weight"].detach())
    others = [0, 1, 3, 5]
    assert not ends[1][2].isfinite().all()
    assert torch.equal(ends[0][others], ends[1][others])
    assert torch.equal(ends[1][4], learners(recipe).state()["0.weight"][4])


def test_an_objective_takes_the_place_of_the_loss_and_the_penalty_comes_on_top() -> None:
    batches, seen = minibatches(), []

    def doubled(h: BatchedLearner, task: Task) -> Tensor:
        seen.append(task)
        return 2 * cross_entropy(h(task.X_tr), task.Y_tr).mean(dim=1)

    def twice(h: object, snapshot: Snapshot) -> Tensor:
        return 2 * shrink(h, snapshot)

    for regularizer, halved in ((None, None), (twice, shrink)):
        a, b = classifiers(), classifiers()
        options: dict[str, Any] = {"loss": squared_error, "objective": doubled}  # loss unused
        fit(a, batches, steps=3, lr=0.1, regularizer=regularizer, **options)
        fit(b, batches, loss=cross_entropy, steps=3, lr=0.2, regularizer=halved)
        assert_equal_states(a, b)
    assert [torch.equal(t.X_tr, batches(i % 3).X_tr) for i, t in enumerate(seen)] == [True] * 6


@pytest.mark.parametrize("make", [classifier, modal])
def test_a_schedule_scales_the_penalty(make: Callable[[], nn.Module]) -> None:
    def trained(
        regularizer: Callable[[object, Snapshot], Tensor] | None,
        schedule: Callable[[int], float] | None,
    ) -> BatchedLearner:
        h = classifiers(3, make)
        options: dict[str, Any] = {"regularizer": regularizer, "schedule": schedule}
        fit(h, minibatches(), loss=cross_entropy, steps=4, lr=0.3, **options)
        return h

    def refused(h: object, snapshot: Snapshot) -> Tensor:
        raise AssertionError("a penalty of no weight must not be computed")

    assert_equal_states(trained(refused, lambda _: 0.0), trained(None, None))
    assert_equal_states(trained(shrink, lambda _: 1.0), trained(shrink, None))
    assert_equal_states(
        trained(shrink, lambda _: 0.3), trained(lambda h, s: 0.3 * shrink(h, s), None)
    )
    asked: list[int] = []
    trained(shrink, lambda done: asked.append(done) or 1.0)  # type: ignore[func-returns-value]
    assert asked == [0, 1, 2, 3]
    # A schedule that starts late is no penalty first and then the penalty.
    late, h = trained(shrink, lambda done: float(done >= 2)), classifiers(3, make)
    batches = minibatches()
    fit(h, batches, loss=cross_entropy, steps=2, lr=0.3)
    fit(h, Later(batches, 2), loss=cross_entropy, steps=2, lr=0.3, regularizer=shrink)
    assert_equal_states(late, h)


@given(visits=st.sets(st.integers(-1, 6)), steps=st.integers(0, 4))
def test_visitors_come_when_asked_and_change_nothing(visits: set[int], steps: int) -> None:
    batches, seen = minibatches(), []
    h, plain = classifiers(3, modal), classifiers(3, modal)

    def look(step: int, visited: BatchedLearner) -> None:
        assert visited is h
        assert not h.training
        H = h(batches(step).X_te)
        assert not H.requires_grad
        seen.append((step, H))

    options: dict[str, Any] = {"loss": cross_entropy, "steps": steps, "lr": 0.3}
    fit(h, batches, visit=look, visits=visits, **options)
    observed: list[Snapshot] = []
    fit(plain, batches, observe=lambda _, snapshot: observed.append(snapshot), **options)
    assert h.training
    assert [step for step, _ in seen] == sorted(visits & set(range(steps + 1)))
    for step, H in seen:
        torch.testing.assert_close(H, observed[step].H_te)
    for name, value in plain.state().items():
        assert torch.equal(h.state()[name], value)


def test_a_learner_in_evaluation_mode_stays_in_it_when_visited(task: Task, recipe: Recipe) -> None:
    h = learners(recipe).eval()
    assert isinstance(h, BatchedLearner)
    fit(h, task, loss=squared_error, steps=2, lr=0.1, visit=lambda *_: None, visits=range(3))
    assert not h.training


small = partial(mlp, 1, (8,), 1)


@pytest.mark.trains
def test_training_lowers_the_training_loss_of_every_learner(task: Task) -> None:
    def loss(steps: int, seed: int) -> torch.Tensor:
        h = Recipe(make=small, steps=steps, lr=0.02).train(task, stream(seed, "h"))
        return squared_error(h(task.X_tr), task.Y_tr).mean(dim=1)

    holds_for_seeds(lambda seed: bool((loss(50, seed) < loss(0, seed)).all()))


def test_the_generator_also_decides_the_noise_and_the_global_state_stays(task: Task) -> None:
    def noisy() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 20), nn.Dropout(0.5), nn.Linear(20, 1))

    recipe = Recipe(make=noisy, steps=3, lr=0.02)
    before = torch.get_rng_state()
    a, b, c = (recipe.train(task, stream(seed, "h")).eval()(task.X_te) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_recipe_is_what_fit_does_with_fresh_learners(few_shot: FewShot) -> None:
    points, penalized, visited = few_shot.sample(3, stream(0, "x")), [], []

    class Same:
        def __len__(self) -> int:
            return 3

        def __call__(self, step: int) -> Task:
            return points[torch.tensor([step % 3, 0, 1])]

    def objective(h: BatchedLearner, task: Task) -> Tensor:
        return 2 * cross_entropy(h(task.X_tr), task.Y_tr).mean(dim=1)

    def penalty(_: object, snapshot: Snapshot) -> Tensor:
        penalized.append(len(snapshot))
        return snapshot.H_te.square().mean(dim=(1, 2))

    def visit(step: int, h: BatchedLearner) -> None:
        visited.append((step, len(h.state()["1.0.weight"])))

    common: dict[str, Any] = {
        "loss": cross_entropy,
        "steps": 4,
        "lr": 0.1,
        "optimizer": partial(torch.optim.SGD, momentum=0.9),
        "objective": objective,
        "sharpness": 0.1,
    }
    rest: dict[str, Any] = {"regularizer": penalty, "schedule": lambda done: float(done > 0)}
    rest |= {"visit": visit, "visits": (0, 4)}
    by_recipe = Recipe(make=flat, **common).train(Same(), stream(0, "h"), **rest)
    assert penalized == [3] * 6  # twice in each step but the first
    assert visited == [(0, 3), (4, 3)]
    assert not by_recipe.training
    by_hand = stack(flat, 3, stream(0, "h"))
    fit(by_hand, Same(), **common, **rest)
    for name, value in by_hand.state().items():
        assert torch.equal(by_recipe.state()[name], value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"steps": -1}, "steps must not be negative, got -1"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"sharpness": -0.1}, "sharpness must not be negative, got -0.1"),
        ({"sharpness": float("nan")}, "sharpness must not be negative, got nan"),
    ],
)
def test_impossible_recipes_are_refused(arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Recipe(make=small, **arguments)  # type: ignore[arg-type]


def test_losses_gap_and_snapshot_belong_to_the_learner_after_its_last_update(
    task: Task, recipe: Recipe
) -> None:
    learners = train_learners(recipe, task, seed=0)
    assert learners.loss_te.shape == (recipe.steps + 1, len(task))
    loss_te = squared_error(learners.end.H_te, task.Y_te).mean(dim=1)
    torch.testing.assert_close(learners.loss_te[-1], loss_te)
    torch.testing.assert_close(learners.gap, loss_te - learners.loss_tr[-1])
    torch.testing.assert_close(learners.gap, gap(squared_error, learners.end, task.Y_te))


def test_every_method_starts_from_the_same_learners(task: Task, recipe: Recipe) -> None:
    plain = train_learners(recipe, task, seed=0)
    other = train_learners(
        recipe, task, seed=0, penalty=lambda rows: oracle_penalty(squared_error, task.Y_te[rows])
    )
    assert torch.equal(plain.loss_te[0], other.loss_te[0])
    assert other.loss_te[-1].mean() < plain.loss_te[-1].mean()


def test_chunks_get_the_rows_that_are_theirs(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """With learners that all start alike, cutting the tasks into chunks changes nothing."""

    def make() -> torch.nn.Module:
        net = mlp(1, (4,), 1)
        for parameter, value in zip(net.parameters(), (0.3, 0.1, 0.2, 0.1), strict=True):
            torch.nn.init.constant_(parameter, value)
        return net

    seen: list[tuple[slice, int]] = []
    run = partial(
        train_learners,
        Recipe(make=make, steps=3, lr=0.05),
        task,
        seed=0,
        penalty=lambda rows: oracle_penalty(squared_error, task.Y_te[rows]),
        observe=lambda rows, step, _: seen.append((rows, step)),
    )
    whole = run()
    monkeypatch.setattr(fit_module, "CHUNK", 4)
    parts = run()
    torch.testing.assert_close(parts.loss_te, whole.loss_te)
    torch.testing.assert_close(parts.end.H_te, whole.end.H_te)
    assert seen[4:] == [(slice(i, i + 4), step) for i in (0, 4) for step in range(4)]


def test_points_are_learned_as_their_values_are(
    few_shot: FewShot, image_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = few_shot.sample(5, stream(0, "x"))
    monkeypatch.setattr(fit_module, "CHUNK", 3)
    a, b = (train_learners(image_recipe, t, seed=0) for t in (points, points.loaded()))
    assert torch.equal(a.loss_te, b.loss_te)
    assert isinstance(a.end.X_te, Points)  # the store's inputs are not carried along
    assert torch.equal(a.end.X_te.indices, raw(points.X_te))


def test_a_learner_has_diverged_when_its_losses_were_infinite_or_are_ten_times_higher() -> None:
    inf, nan = torch.inf, torch.nan
    losses = torch.tensor(
        [[1.0, 1.0, 1.0, 1.0, 1.0, inf], [0.5, 11.0, 2.0, inf, nan, 1.0], [0.1, 9.0, 10.1, 1, 1, 1]]
    )
    F, T = False, True
    expected = [[F, F, F, F, F, T], [F, T, F, T, T, T], [F, F, T, T, T, T]]
    assert diverged(losses).tolist() == expected


def ended(loss_te: Tensor) -> Trajectory:
    zeros = torch.zeros(len(loss_te), 1, 1)
    losses = torch.stack([torch.ones_like(loss_te), loss_te])
    return Trajectory(losses / 2, losses / 2, Snapshot(*[zeros] * 5), loss_te)


def test_a_task_is_usable_where_no_method_diverged() -> None:
    one, other = ended(torch.tensor([1.0, 20.0, 1.0])), ended(torch.tensor([1.0, 1.0, 2.0]))
    assert usable_rows([one.diverged, other.diverged]).tolist() == [True, False, True]
    assert one[torch.tensor([0, 2])].diverged.tolist() == [False, False]
    with pytest.raises(FloatingPointError, match="must not all diverge, got 1 that did not"):
        usable_rows([torch.tensor([True, True, False])])


# The learning rate, and inputs that change at random.


@given(progress=st.floats(0, 1), warmup=st.floats(0.01, 0.9))
def test_the_learning_rate_rises_then_falls_to_zero(progress: float, warmup: float) -> None:
    assert 0 <= warmup_cosine(progress, warmup=warmup, decay=True) <= 1
    assert warmup_cosine(0.0, warmup=warmup, decay=True) == 0.04
    assert warmup_cosine(warmup, warmup=warmup, decay=True) == 1
    assert warmup_cosine(1.0, warmup=warmup, decay=True) < 1e-12
    assert warmup_cosine(progress, warmup=0.0, decay=False) == 1  # the paper's


def test_steps_are_as_long_as_the_schedule_says(task: Task, recipe: Recipe) -> None:
    rates: list[float] = []

    class Noted(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    fit(learners(recipe), task, steps=8, lr=0.1, optimizer=Noted, warmup=0.25, decay=True)
    expected = [0.1 * warmup_cosine(i / 8, warmup=0.25, decay=True) for i in range(8)]
    assert rates == pytest.approx(expected)
    assert max(rates) == 0.1


def test_an_optimizers_own_rates_stay_in_proportion(task: Task, recipe: Recipe) -> None:
    rates: list[list[float]] = []

    class Grouped(torch.optim.SGD):
        def __init__(self, parameters: list[Tensor], lr: float) -> None:
            groups: Any = [{"params": parameters[:1], "lr": 3 * lr}, {"params": parameters[1:]}]
            super().__init__(groups, lr=lr)

        def step(self, closure: Any = None) -> Any:
            rates.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    fit(learners(recipe), task, steps=5, lr=0.01, optimizer=Grouped, decay=True)
    assert rates[0] == pytest.approx([0.03, 0.01])
    assert all(a == pytest.approx(3 * b) for a, b in rates)
    assert rates[-1][0] < rates[0][0]


def test_training_inputs_are_augmented_and_seen_as_they_are(task: Task, recipe: Recipe) -> None:
    shown: list[Tensor] = []

    def augment(X: Tensor) -> Tensor:
        shown.append(X)
        return X + torch.rand(X.shape[0], 1, 1)

    seen: list[Snapshot] = []
    plain, moved, again = (learners(recipe) for _ in range(3))
    fit(plain, task, steps=3, lr=0.05)
    for h in (moved, again):
        torch.manual_seed(1)
        fit(h, task, steps=3, lr=0.05, augment=augment, observe=lambda _, s: seen.append(s))
    assert len(shown) == 6
    assert all(torch.equal(X, task.X_tr) for X in shown)
    for s in seen:
        assert torch.equal(s.X_tr, task.X_tr)
    torch.testing.assert_close(seen[3].H_tr, moved(task.X_tr).detach())
    weights = [h.state()["0.weight"] for h in (plain, moved, again)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.allclose(weights[0], weights[1])


def test_a_sharpness_aware_step_sees_one_augmented_batch(task: Task, recipe: Recipe) -> None:
    calls: list[int] = []

    def augment(X: Tensor) -> Tensor:
        calls.append(1)
        return X

    fit(learners(recipe), task, steps=3, lr=0.05, sharpness=0.1, augment=augment)
    assert len(calls) == 3


def test_augment_and_regularizer_do_not_go_together(task: Task, recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="augment must be None with a regularizer"):
        fit(learners(recipe), task, steps=1, lr=0.1, augment=lambda X: X, regularizer=shrink)


@pytest.mark.parametrize("warmup", [-0.1, 1.0, float("nan")])
def test_warmup_is_a_part(warmup: float) -> None:
    with pytest.raises(ValueError, match="warmup must be from 0 to less than 1, got"):
        Learning(warmup=warmup)

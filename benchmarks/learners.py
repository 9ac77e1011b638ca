"""512 learners at once against one after another, and against a hand-written network."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import Recipe, Regularizer, fit
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import squared_error
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.lazy import lazy_penalty
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.regularizers.penalties import oracle_penalty
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from timing import Ratio, operations, seconds_each, show

B, STEPS, LR = 512, 16, 0.01
SELDOM = 16  # steps from one question to NC to the next: one is enough for a training
make = partial(mlp, 1, (40, 40), 1)


def one_after_another(task: Task, learners: int) -> None:
    """The plain way: one module, one optimizer, one task at a time."""
    for b in range(learners):
        h = make()
        optimizer = torch.optim.SGD(h.parameters(), lr=LR)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (h(task.X_tr[b]) - task.Y_tr[b]).square().mean().backward()
            optimizer.step()


def by_hand(task: Task) -> None:
    """The fast way for this one network: stacked weights and `baddbmm`, no library."""

    def draw(rows: int, fan_in: int, fan_out: int) -> Tensor:
        bound = fan_in**-0.5
        return torch.empty(B, rows, fan_out).uniform_(-bound, bound).requires_grad_()

    sizes = ((1, 40), (40, 40), (40, 1))
    weights = [draw(i, i, o) for i, o in sizes]
    biases = [draw(1, i, o) for i, o in sizes]
    parameters = [*weights, *biases]
    for _ in range(STEPS):
        e = task.X_tr
        for layer in range(3):
            e = torch.baddbmm(biases[layer], e, weights[layer])
            e = e.relu() if layer < 2 else e
        loss = (e - task.Y_tr).square().mean(dim=(1, 2)).sum()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-LR)


def main() -> None:
    task = Sinusoids().sample(B, stream(0, "benchmark"))
    recipe = Recipe(make=make, loss=squared_error, steps=STEPS, lr=LR)
    generator = stream(0, "learners")
    part = B // 16
    plain, hand, ours = seconds_each(
        lambda: one_after_another(task, part),
        lambda: by_hand(task),
        lambda: recipe.train(task, generator),
    )
    plain *= B / part
    ratios = [
        Ratio(
            "512 learners x 16 steps: one by one / batched",
            plain / ours,
            ">= 30",
            plain / ours >= 30,
            f"{ours * 1e3:.0f} ms batched, construction included",
        ),
        Ratio(
            "512 learners x 16 steps: batched / hand-written baddbmm",
            ours / hand,
            "<= 1.5",
            ours / hand <= 1.5,
            f"{hand * 1e3:.0f} ms by hand",
        ),
    ]
    for head in ("posterior", "direct"):
        nc = NeuralComplexity.for_tasks(task, head=head)
        h = stack(make, B, generator)
        steps = partial(fit, h, task, loss=squared_error, steps=STEPS, lr=LR)
        always = partial(steps, regularizer=nc_penalty(nc, task, safeguard=False))
        names: dict[str, tuple[Callable[[], object], int | None]] = {}
        names[f"regularized / plain step, {head} head"] = (always, None)
        if head == "direct":  # each training has a lazy penalty of its own, which counts its steps
            seldom = partial(train_lazily, steps, partial(lazy_penalty, nc, task, steps=SELDOM))
            names[f"lazily (every {SELDOM}th step) / plain step, {head} head"] = (seldom, 5)
        plain, *took = seconds_each(steps, *(run for run, _ in names.values()), rounds=5)
        for (name, (run, bar)), seconds in zip(names.items(), took, strict=True):
            ratio, more = seconds / plain, operations(run) / operations(steps)
            note = f"NC of width 128; a plain step takes {plain / STEPS * 1e3:.1f} ms"
            note += f"; {more:.1f} times the products"
            reached = bar is None or ratio <= bar
            ratios.append(Ratio(name, ratio, f"<= {bar}" if bar else "none", reached, note))
    show([*ratios, *lazy_shares(task)])


def train_lazily(steps: Callable[..., None], penalty: Callable[[], Regularizer]) -> None:
    """Trains with a penalty that is made for this training."""
    steps(regularizer=penalty())


def lazy_shares(task: Task) -> list[Ratio]:
    """Measures what a lazy penalty is worth: the share of the oracle's gain in the test loss."""
    nc = NeuralComplexity.pretrained("sinusoid-direct")

    def ended(penalty: Regularizer | None) -> float:
        h = stack(make, B, stream(0, "learners of lazy penalties"))
        fit(h, task, loss=squared_error, steps=STEPS, lr=LR, regularizer=penalty)
        with torch.no_grad():
            return squared_error(h(task.X_te), task.Y_te).mean().item()

    plain, oracle = ended(None), ended(oracle_penalty(squared_error, task.Y_te))
    gains = [plain - ended(lazy_penalty(nc, task, steps=k)) for k in (1, SELDOM)]
    always, seldom = (gain / (plain - oracle) for gain in gains)
    name = f"share of the oracle, lazily (every {SELDOM}th step), direct head"
    return [Ratio(name, seldom, ">= 0.93", seldom >= 0.93, f"asked at each step {always:.3f}")]


if __name__ == "__main__":
    main()

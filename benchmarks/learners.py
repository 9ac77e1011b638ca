"""512 learners at once against one after another, and against a hand-written network."""

from functools import partial

import torch
from torch import Tensor

from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import Recipe, fit
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import squared_error
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from timing import Ratio, operations, seconds_each, show

B, STEPS, LR = 512, 16, 0.01
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
        penalty = nc_penalty(NeuralComplexity.for_tasks(task, head=head), task)
        h = stack(make, B, generator)
        steps = partial(fit, h, task, loss=squared_error, steps=STEPS, lr=LR)
        regularized, unregularized = seconds_each(
            partial(steps, regularizer=penalty), steps, rounds=5
        )
        ratio, bar = regularized / unregularized, 5
        more = operations(partial(steps, regularizer=penalty)) / operations(steps)
        note = f"NC of width 128; a plain step takes {unregularized / STEPS * 1e3:.1f} ms"
        note += f"; {more:.1f} times the products"
        reached = ratio <= bar
        name = f"regularized / plain step, {head} head"
        ratios.append(Ratio(name, ratio, f"<= {bar}", reached, note))
    show(ratios)


if __name__ == "__main__":
    main()

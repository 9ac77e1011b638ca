import torch

from neural_complexity.learners.fit import Recipe
from neural_complexity.losses import squared_error
from neural_complexity.regularizers.oracle import oracle_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task


def test_with_the_oracle_learners_descend_their_test_loss(task: Task, recipe: Recipe) -> None:
    oracle = oracle_penalty(squared_error, task.Y_te)
    snapshot = take_snapshot(torch.cos, task)
    objective = squared_error(snapshot.H_tr, task.Y_tr).mean(dim=1) + oracle(
        torch.nn.Identity(), snapshot
    )
    torch.testing.assert_close(objective, squared_error(snapshot.H_te, task.Y_te).mean(dim=1))
    # Swapping the sets, plain learning descends the same loss.
    swapped = Task(task.X_te, task.Y_te, task.X_tr, task.Y_tr)
    with_oracle = recipe.train(task, stream(0, "h"), regularizer=oracle)
    plain = recipe.train(swapped, stream(0, "h"))
    for a, b in zip(with_oracle.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)

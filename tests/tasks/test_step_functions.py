from neural_complexity.seeding import stream
from neural_complexity.tasks.step_functions import StepFunctions


def test_step_functions_have_one_level_between_two_jumps() -> None:
    task = StepFunctions(jumps=2, train_points=300, test_points=1).sample(20, stream(0, "x"))
    X, Y = task.X_tr[..., 0], task.Y_tr[..., 0]
    ordered = Y.gather(1, X.argsort(dim=1))
    changes = (ordered.diff(dim=1) != 0).sum(dim=1)
    assert changes.max() == 2
    assert changes.double().mean() > 1.5

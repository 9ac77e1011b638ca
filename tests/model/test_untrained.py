import torch

from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.untrained import default_fields, set_units
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids


def test_targets_decide_the_loss_and_the_number_of_outputs() -> None:
    real = Sinusoids().sample(4, stream(0, "tasks"))
    assert default_fields(real, {}) == {"loss": "squared_error", "outputs": 1}
    labels = Task(real.X_tr, torch.zeros(4, 10).long(), real.X_te, torch.full((4, 15), 6))
    found = default_fields(labels, {"rounds": 0})
    assert (found["loss"], found["outputs"], found["rounds"]) == ("cross_entropy", 7, 0)
    assert found["vote"]


def test_units_are_those_of_the_sample() -> None:
    nc = NeuralComplexity(2, 1, width=8, heads=2)
    X, Y = 3 + 2 * torch.randn(50, 20, 2), 5 * torch.randn(50, 20, 1)
    set_units(nc, X, Y)
    torch.testing.assert_close(nc.x_mean, X.mean(dim=(0, 1)))
    torch.testing.assert_close(nc.y_scale, Y.std(dim=(0, 1), correction=0))

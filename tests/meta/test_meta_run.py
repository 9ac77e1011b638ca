import torch
from torch import Tensor, nn

from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.meta.meta_run import batchable, make_recipe, settle
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids

RECIPE = Recipe(make=lambda: mlp(1, (4,), 1), steps=2, lr=0.01)


def test_equal_runs_have_equal_fingerprints_and_others_do_not() -> None:
    def run(seed: int = 0, lr: float = 0.01, width: int = 8) -> str:
        recipe = Recipe(make=RECIPE.make, steps=2, lr=lr)
        return settle(Sinusoids(), recipe, seed, "cpu", {"width": width, "heads": 2}).fingerprint

    assert run() == run()
    assert len({run(), run(seed=1), run(lr=0.02), run(width=16)}) == 4


def test_a_group_of_learners_is_trained_once() -> None:
    run = settle(Sinusoids(), RECIPE, 0, "cpu", {"width": 8, "heads": 2})
    assert run.group("validation", 0) is run.group("validation", 0)
    assert run.group("validation", 0) is not run.group("report", 0)
    assert run.batch == 32


def test_the_default_network_does_not_mind_units() -> None:
    task = Sinusoids().sample(8, stream(0, "tasks"))
    scaled = Task(1000 * task.X_tr + 5, 100 * task.Y_tr - 3, task.X_te, task.Y_te)
    networks = []
    for each in (task, scaled):
        torch.manual_seed(0)
        recipe = make_recipe(None, each, 1)
        assert recipe.loss is squared_error
        networks.append(recipe.make())
    H, moved = (h(t.X_tr[0]) for h, t in zip(networks, (task, scaled), strict=True))
    torch.testing.assert_close(moved, 100 * H - 3)


def test_labels_are_learned_by_cross_entropy() -> None:
    task = Sinusoids().sample(8, stream(0, "tasks"))
    labels = Task(task.X_tr, (task.Y_tr[..., 0] > 0).long(), task.X_te, task.Y_te)
    assert make_recipe(lambda: nn.Linear(1, 2), labels, 2).loss is cross_entropy


class Branching(nn.Linear):
    def forward(self, X: Tensor) -> Tensor:
        H = super().forward(X)
        return H if H.mean() > 0 else 2 * H


def test_networks_that_decide_by_values_cannot_be_batched() -> None:
    task = Sinusoids().sample(8, stream(0, "tasks"))
    for network, expected in ((nn.Linear, True), (Branching, False)):
        assert batchable(make_recipe(lambda n=network: n(1, 1), task, 1), task) == expected  # type: ignore[misc]

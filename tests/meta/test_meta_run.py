from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.meta.meta_run import batch_size, settle
from neural_complexity.tasks.families import Sinusoids

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
    assert batch_size(run.nc) == 32

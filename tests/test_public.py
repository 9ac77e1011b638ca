import subprocess
import sys

import neural_complexity


def test_the_public_names_are_these() -> None:
    assert sorted(neural_complexity.__all__) == [
        "BatchedLearner",
        "MemoryBank",
        "MetaLearner",
        "NCClassifier",
        "NCRegressor",
        "NCRegularizer",
        "NeuralComplexity",
        "Recipe",
        "Sinusoids",
        "Snapshot",
        "Task",
        "TaskFamily",
        "fit",
        "gap",
        "mlp",
        "nc_penalty",
        "oracle_penalty",
        "squared_error",
        "stack",
        "stream",
        "take_snapshot",
        "trust",
    ]
    for name in neural_complexity.__all__:
        assert getattr(neural_complexity, name).__doc__ or name == "squared_error"
    assert set(dir(neural_complexity)) == set(neural_complexity.__all__)


def test_unknown_names_are_missing() -> None:
    assert not hasattr(neural_complexity, "train")


def test_importing_loads_nothing_heavy_and_touches_no_random_state() -> None:
    code = (
        "import sys, torch; before = torch.get_rng_state(); import neural_complexity; "
        "assert torch.equal(before, torch.get_rng_state()); "
        "heavy = {'tensordict', 'matplotlib', 'tyro', 'rich'} & set(sys.modules); assert not "
        "heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

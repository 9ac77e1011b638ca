import subprocess
import sys
from pathlib import Path

import neural_complexity
from versions import floors, pinned_torch


def test_the_public_names_are_these() -> None:
    assert sorted(neural_complexity.__all__) == [
        "MetaLearner",
        "Monitor",
        "NCClassifier",
        "NCRegressor",
        "NCRegularizer",
        "NeuralComplexity",
        "Plan",
        "Recipe",
        "Sinusoids",
        "Snapshot",
        "Task",
        "TaskFamily",
        "assess",
        "compare",
        "cross_entropy",
        "fit",
        "gap",
        "meta_learn",
        "mlp",
        "nc_penalty",
        "rank_measures",
        "split_tasks",
        "squared_error",
        "stream",
        "take_snapshot",
        "trust",
    ]
    assert len(neural_complexity.__all__) <= 26
    for name in neural_complexity.__all__:
        assert getattr(neural_complexity, name).__doc__ or name.endswith(("error", "entropy"))
    assert set(dir(neural_complexity)) == set(neural_complexity.__all__)


def test_unknown_names_are_missing() -> None:
    assert not hasattr(neural_complexity, "train")


def test_importing_loads_nothing_heavy_and_touches_no_random_state() -> None:
    code = (
        "import sys, torch; before = torch.get_rng_state(); import neural_complexity; "
        "assert torch.equal(before, torch.get_rng_state()); "
        "heavy = {'matplotlib', 'pandas', 'tyro', 'rich', 'scipy.stats', 'sklearn'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_source_distribution_has_what_the_makefile_needs() -> None:
    root = Path(__file__).parents[1]
    included = (root / "MANIFEST.in").read_text().split()
    assert {"constraints.txt", "Makefile"} <= set(included)


def test_every_dependency_has_a_lowest_version_that_is_tested() -> None:
    assert all("==" in line for line in floors())
    assert pinned_torch().startswith("torch==")

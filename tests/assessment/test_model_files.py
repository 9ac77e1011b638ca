from pathlib import Path

from neural_complexity.assessment.model_files import ModelFiles


def test_three_files_are_enough() -> None:
    files = ModelFiles(train=Path("a"), test=Path("b"), predictions=Path("c"))
    assert files.predictions_train is None
    assert files.target == ()
    assert not files.probabilities

from neural_complexity.baselines.measures.catalogue import MEASURES


def test_there_are_measures() -> None:
    assert MEASURES

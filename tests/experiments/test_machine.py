import sys

from neural_complexity.experiments.machine import hold_memory, machine


def test_the_machine_is_described_but_not_named() -> None:
    assert set(machine()) == {"processor", "threads", "torch", "python"}


def test_memory_can_be_held_where_the_c_library_knows_how() -> None:
    assert hold_memory() in ({True} if sys.platform == "linux" else {True, False})

import platform
import sys

from neural_complexity.experiments.base.memory import hold_memory, machine


def test_the_machine_is_described_but_not_named() -> None:
    assert set(machine()) == {"processor", "threads", "torch", "python"}


def test_memory_can_be_held_where_the_c_library_knows_how() -> None:
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        assert hold_memory()
    else:
        assert not hold_memory()

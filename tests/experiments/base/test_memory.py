import platform
import sys

from neural_complexity.experiments.base.memory import hold_memory


def test_memory_can_be_held_where_the_c_library_knows_how() -> None:
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        assert hold_memory()
    else:
        assert not hold_memory()

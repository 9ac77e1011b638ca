"""Where the command `neural-complexity` starts; an interrupt ends it quietly at any moment."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

__all__ = ["load_quietly", "main"]

INTERRUPTED = 130  # the exit code of a shell's command that was interrupted


def main() -> int:
    """Runs the command line, and returns its exit code."""
    return int(load_quietly("neural_complexity.cli").main())


def load_quietly(name: str) -> ModuleType:
    """Imports a module; an interrupt while it does so ends the process without a traceback."""
    with _interruptible():
        return import_module(name)


@contextmanager
def _interruptible() -> Iterator[None]:
    # Extensions make an ImportError of a KeyboardInterrupt, or drop it.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())

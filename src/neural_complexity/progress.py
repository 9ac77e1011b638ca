"""What a run says of its progress, and how a person sees it."""

import math
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

__all__ = ["ProgressCallback", "ProgressDisplay"]

SECONDS_BETWEEN_LINES = 15.0


class ProgressCallback(Protocol):
    """Called as a run goes on."""

    def __call__(
        self, stage: str, done: int, total: int, seconds: float, metrics: dict[str, float], /
    ) -> None:
        """Receives where a stage stands.

        Args:
            stage: What is under way.
            done: How much of it is done.
            total: Out of how much.
            seconds: How long that took.
            metrics: The current numbers, by name.
        """
        ...


class ProgressDisplay:
    """Live bars in a terminal; a line now and then elsewhere; TensorBoard where it is installed.

    Args:
        console: Where to print.
        tensorboard: Where TensorBoard's files go; none are written if `None`.
    """

    def __init__(self, console: Console, tensorboard: Path | None = None) -> None:
        self.console = console
        self.writer = None if tensorboard is None else _tensorboard(tensorboard)
        self.bars: dict[str, TaskID] = {}
        self.last_line = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.fields[metrics]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "ProgressDisplay":
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()
        if self.writer is not None:
            self.writer.close()

    def __call__(
        self, stage: str, done: int, total: int, seconds: float, metrics: dict[str, float], /
    ) -> None:
        """Shows where a stage of the run stands."""
        left = f"{seconds / done * (total - done):.0f} s left" if done < total else "done"
        text = "  ".join([left, *(f"{name} {_number(x)}" for name, x in metrics.items())])
        if stage not in self.bars:
            self.bars[stage] = self.progress.add_task(stage, total=total, metrics=text)
        self.progress.update(self.bars[stage], completed=done, metrics=text)
        due = time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES or done == total
        if not self.console.is_terminal and due:
            self.last_line = time.monotonic()
            print(f"{stage} {done}/{total}  {text}", file=sys.stderr)
        if self.writer is not None:
            for name, value in metrics.items():
                if math.isfinite(value):
                    self.writer.add_scalar(f"{stage}/{name}", value, done)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"  # not measured yet
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _tensorboard(folder: Path):  # type: ignore[no-untyped-def]
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None  # the extra is not installed
    return SummaryWriter(str(folder))

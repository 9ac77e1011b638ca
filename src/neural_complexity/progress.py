"""What a run says of its progress, and how a person sees it."""

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

__all__ = ["ProgressCallback", "ProgressDisplay"]

SECONDS_BETWEEN_LINES = 15.0

# Called as a run goes on: the stage under way, how much of it is done, out of how much, how many
# seconds that took, and the current numbers by name.
ProgressCallback = Callable[[str, int, int, float, dict[str, float]], None]


class ProgressDisplay(Progress):
    """Live bars in a terminal; a line now and then elsewhere; TensorBoard where it is installed."""

    def __init__(self, console: Console, tensorboard: Path | None = None) -> None:
        text = TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.fields[metrics]}")
        columns = TextColumn("{task.description}"), BarColumn(bar_width=24), text
        super().__init__(*columns, console=console, disable=not console.is_terminal)
        self.last_line, self.bars = time.monotonic(), dict[str, TaskID]()
        self.writer: Any = None
        if tensorboard is not None:
            with suppress(ImportError):  # the extra may not be installed
                from torch.utils.tensorboard import SummaryWriter

                self.writer = SummaryWriter(str(tensorboard))

    def stop(self) -> None:
        """Ends the display, and the file of TensorBoard."""
        super().stop()
        if self.writer is not None:
            self.writer.close()

    def __call__(
        self, stage: str, done: int, total: int, seconds: float, metrics: dict[str, float], /
    ) -> None:
        """Shows where a stage of the run stands."""
        text = f"{seconds / done * (total - done):.0f} s left" if done < total else "done"
        for name, x in metrics.items():  # whole numbers as they are, a dash for what is unmeasured
            measured = f"{x:,}" if isinstance(x, int) else f"{x:.4f}"
            text += f"  {name} {measured if math.isfinite(x) else '-'}"
            if self.writer is not None and math.isfinite(x):
                self.writer.add_scalar(f"{stage}/{name}", x, done)
        if stage not in self.bars:
            self.bars[stage] = self.add_task(stage, total=total, metrics=text)
        self.update(self.bars[stage], completed=done, metrics=text)
        due = time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES or done == total
        if not self.console.is_terminal and due:
            self.last_line = time.monotonic()
            print(f"{stage} {done}/{total}  {text}", file=sys.stderr)

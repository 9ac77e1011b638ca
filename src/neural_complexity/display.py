"""What a person sees while a run is under way."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from neural_complexity.experiments.folder import RunFolder
from neural_complexity.meta.session import Moment

__all__ = ["Display"]

SECONDS_BETWEEN_LINES = 15.0


class Display:
    """Live bars in a terminal; a line now and then elsewhere; TensorBoard where it is installed.

    Args:
        console: Where to show it.
        folder: Where TensorBoard's files go.
    """

    def __init__(self, console: Console, folder: RunFolder) -> None:
        self.console = console
        self.writer = _tensorboard(folder)
        self.bars: dict[str, TaskID] = {}
        self.last_line = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}  {task.fields[facts]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "Display":
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

    def tell(self, name: str, moment: Moment) -> None:
        """Shows where the meta-training of one NC stands."""
        facts = _facts(moment)
        if name not in self.bars:
            self.bars[name] = self.progress.add_task(name, total=moment.iterations, facts=facts)
        self.progress.update(self.bars[name], completed=moment.iteration, facts=facts)
        finished = moment.iteration == moment.iterations
        due = time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES or finished
        if not self.console.is_terminal and due:
            self.last_line = time.monotonic()
            print(f"{name} {moment.iteration}/{moment.iterations}  {facts}", file=sys.stderr)
        if self.writer is not None:
            for field in ("loss", "r2", "bank", "dropped"):
                value = getattr(moment, field)
                if value == value:  # no score yet
                    self.writer.add_scalar(f"{name}/{field}", value, moment.iteration)


def _facts(moment: Moment) -> str:
    left = moment.seconds / moment.iteration * (moment.iterations - moment.iteration)
    score = f"{moment.r2:.4f}" if moment.r2 == moment.r2 else "-"
    return (
        f"{left:.0f} s left  loss {moment.loss:.4f}  R2 {score}  "
        f"bank {moment.bank:,}  dropped {moment.dropped}"
    )


def _tensorboard(folder: RunFolder):  # type: ignore[no-untyped-def]
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None  # the extra is not installed
    return SummaryWriter(str(folder.tensorboard))

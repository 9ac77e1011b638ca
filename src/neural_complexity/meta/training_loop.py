"""Running meta-learning from start to end, through interruptions."""

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_complexity.meta.checkpoint import read_checkpoint, write_checkpoint
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback

__all__ = ["Moment", "Resume", "Stop", "Watch", "keep", "meta_train", "recall", "tell_moments"]

CHECKPOINT = "checkpoint.safetensors"

Resume = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(frozen=True)
class Moment:
    """Where meta-learning stands."""

    iteration: int
    iterations: int
    bank: int  # rows in the bank
    dropped: int  # rows refused because their learner diverged
    seconds: float  # spent so far, over all sessions
    loss: float = math.nan
    r2: float = math.nan  # on held-out learners, as last measured

    def to_json(self) -> dict[str, float]:
        """Gives the numbers that JSON has; the others are NaN again in `Moment(**numbers)`."""
        return {name: number for name, number in asdict(self).items() if math.isfinite(number)}


Watch = Callable[[Moment], None]
Stop = Callable[[Moment], bool]  # hears of each score in turn


def tell_moments(callback: ProgressCallback | None, stage: str) -> Watch:
    """Returns the watch that passes on where meta-learning stands."""

    def watch(moment: Moment) -> None:
        if callback is not None:
            metrics = {"loss": moment.loss, "R2": moment.r2}
            metrics |= {"bank": moment.bank, "dropped": moment.dropped}
            callback(stage, moment.iteration, moment.iterations, moment.seconds, metrics)

    return watch


def keep(folder: Path, identity: str, state: Resume, history: list[Moment]) -> None:
    """Writes a checkpoint of a run to its folder.

    Args:
        folder: Where to; may be new.
        identity: Names the settings of the run.
        state: All that a new process needs to go on.
        history: The moments so far.
    """
    tensors, counters = state
    counters = {**counters, "history": [asdict(m) for m in history], "identity": identity}
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder / CHECKPOINT, tensors, counters)


def recall(folder: Path | None, identity: str) -> tuple[Resume | None, list[Moment]]:
    """Reads what `keep` wrote: the state to go on from, if there is one, and the moments so far.

    Raises:
        ValueError: If the checkpoint is damaged or of other settings.
    """
    if folder is None or not (folder / CHECKPOINT).exists():
        return None, []
    tensors, counters = read_checkpoint(folder / CHECKPOINT)
    if counters.get("identity") != identity:
        raise ValueError(f"{folder / CHECKPOINT} must be of the same settings, got one of others")
    return (tensors, counters), [Moment(**moment) for moment in counters["history"]]


def meta_train(
    build: Callable[[Path | None, Resume | None], MetaLearner],
    *,
    validate: Callable[[NeuralComplexity], float],
    validate_every: int,
    save_every: int,
    folder: Path | None = None,
    identity: str = "",
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> list[Moment]:
    """Runs all iterations of Algorithm 2; goes on where an earlier run in `folder` stopped.

    The result does not depend on where, or how often, it was stopped.

    Args:
        build: Makes the meta-learner from the bank's folder and the state to go on from.
        validate: Scores NC on held-out learners.
        validate_every: Iterations between two scores.
        save_every: Iterations between two checkpoints; the bank must be able to go back as many.
        folder: Where checkpoint and bank are kept; the caller may remove it when all is done.
            Nothing is kept if `None`.
        identity: Names the settings; a checkpoint of others is refused.
        watch: Told after each iteration.
        stop: Asked after each score whether to end here; on going on, first about all scores of
            earlier runs, so that it knows what it would have known without the interruption.

    Returns:
        One moment per score.

    Raises:
        ValueError: If the checkpoint or the bank does not fit.
    """
    bank = None if folder is None else folder / "bank"
    resume, history = recall(folder, identity)
    if resume is None and bank is not None and bank.exists():
        shutil.rmtree(bank)  # of a run that was stopped before its first checkpoint
    learner = build(bank, resume)
    rows = save_every * learner.rows_per_iteration
    if folder is not None and learner.bank.slack < rows:
        raise ValueError(
            f"the bank must be able to go back {rows} rows to resume, got a slack of "
            f"{learner.bank.slack}"
        )
    r2 = history[-1].r2 if history else float("nan")
    before = history[-1].seconds if history else 0.0
    start = time.perf_counter()
    ended = False
    for moment in history:
        ended = stop is not None and stop(moment)
    while not (learner.done or ended):
        learner.iterate()
        scored = learner.iteration % validate_every == 0 or learner.done
        if scored:
            r2 = validate(learner.nc)
        moment = Moment(
            learner.iteration,
            learner.iterations,
            len(learner.bank),
            learner.bank.dropped,
            before + time.perf_counter() - start,
            learner.loss,
            r2,
        )
        if scored:
            history.append(moment)
        if folder is not None and (learner.iteration % save_every == 0 or learner.done):
            learner.bank.flush()
            keep(folder, identity, learner.state(), history)
        if watch is not None:
            watch(moment)
        ended = scored and stop is not None and stop(moment)
    return history

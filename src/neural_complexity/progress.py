"""What a run tells of its progress."""

from typing import Protocol

from neural_complexity.meta.training_loop import Moment, Watch

__all__ = ["Tell", "tell_moments"]


class Tell(Protocol):
    """Takes news of a run; the run does not care who listens."""

    def __call__(
        self, stage: str, done: int, total: int, seconds: float, facts: dict[str, float]
    ) -> None:
        """Hears where a stage stands.

        Args:
            stage: What is under way.
            done: How much of it is done.
            total: Out of how much.
            seconds: How long that took.
            facts: The current numbers, by name.
        """
        ...


def tell_moments(tell: Tell | None, stage: str) -> Watch:
    """Makes the watch that passes on where meta-learning stands."""

    def watch(moment: Moment) -> None:
        if tell is not None:
            facts = {"loss": moment.loss, "R2": moment.r2}
            facts |= {"bank": moment.bank, "dropped": moment.dropped}
            tell(stage, moment.iteration, moment.iterations, moment.seconds, facts)

    return watch

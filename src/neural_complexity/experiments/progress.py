"""What an experiment tells of its progress."""

from typing import Protocol

__all__ = ["Tell"]


class Tell(Protocol):
    """Takes news of a run; the experiment does not care who listens."""

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

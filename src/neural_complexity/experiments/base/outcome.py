"""TRANSITION: `experiment` replaces it."""

from neural_complexity.experiments.base.experiment import Outcome

__all__ = ["Outcome"]

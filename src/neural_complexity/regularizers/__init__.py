"""Penalties added to the training loss of B learners, one per task."""

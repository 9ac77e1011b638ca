"""Complexity measures: numbers of a trained learner that should say how well it generalizes.

A measure is a function of (h, initial, task) that returns one number per learner, (B,); larger ones
predict worse generalization. `catalogue.MEASURES` has them by name.
"""

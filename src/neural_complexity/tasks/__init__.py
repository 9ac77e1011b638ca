"""Families of tasks to learn from."""

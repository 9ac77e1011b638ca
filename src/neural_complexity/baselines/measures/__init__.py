"""Complexity measures of trained networks (a placeholder)."""

"""Rows into tables, figures and one page."""

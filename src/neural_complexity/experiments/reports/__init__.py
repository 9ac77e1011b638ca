"""Rows into tables and figures."""

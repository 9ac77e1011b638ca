"""Task learners h, trained many at a time."""

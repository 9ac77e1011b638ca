"""A user's own domain: an NC for it in one call."""

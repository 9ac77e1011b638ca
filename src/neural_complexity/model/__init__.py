"""The network NC."""

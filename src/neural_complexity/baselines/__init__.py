"""What NC is compared with."""

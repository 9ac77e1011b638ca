"""How far NC can be relied on: calibration, bounds and distribution shift."""

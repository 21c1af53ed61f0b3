"""Studies: many scenarios of one, ranked: axes, constraints, objectives, and rows that arrive from many processes."""

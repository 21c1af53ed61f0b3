"""A step that is lowered once and executed under any conditions: as planned, with sampled durations, with faults, beside checkpoints."""

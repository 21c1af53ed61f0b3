"""How the work is split: mesh, plan, one file per strategy, schedules."""

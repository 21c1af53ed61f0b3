"""Many scenarios: fit, and what compares or searches scenarios."""

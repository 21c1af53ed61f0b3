"""Many runs of one step, made by several workers and kept as they come."""

"""The best strategy among many candidates: proven bounds, shared sub-results, exact pruned search."""

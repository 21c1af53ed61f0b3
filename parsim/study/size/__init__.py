"""Target in, purchase out: which machines, how many, with which strategy, for a training with a deadline or a budget."""

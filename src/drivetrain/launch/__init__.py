"""Floor 2: starting the ranks of a run."""

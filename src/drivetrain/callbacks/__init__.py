"""Floor 6: what a user hangs into a run."""

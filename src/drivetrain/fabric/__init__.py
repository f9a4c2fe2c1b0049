"""Floor 4: the raw-loop toolkit."""

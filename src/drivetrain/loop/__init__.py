"""Floor 5: the module protocol, hooks, metrics, and the loops."""

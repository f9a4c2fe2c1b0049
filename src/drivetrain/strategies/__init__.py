"""Floor 3: everything that depends on where and how a step runs."""

"""Floor 0: errors, trees of tensors, random state, files, counters, optional imports."""

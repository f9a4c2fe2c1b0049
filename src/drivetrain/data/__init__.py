"""Floor 2: loaders whose order is a pure function of seed, epoch and position."""

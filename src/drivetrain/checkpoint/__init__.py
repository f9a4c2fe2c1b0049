"""Floor 1: a checkpoint directory that is complete or not there."""

"""Floor 1: who am I among the ranks, read from an environment mapping."""

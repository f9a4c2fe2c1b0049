"""Floor 2: collectives as an object."""

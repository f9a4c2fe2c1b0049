"""Floor 1: where metrics are written."""

"""Floor 1: number formats as data, and loss scaling."""

"""Floor 8: what a test of a user's own strategy, loader or callback needs."""

"""Floor 7: from arguments to a plan, a launch and a loop."""

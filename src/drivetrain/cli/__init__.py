"""Floor 8: the `drivetrain` command."""

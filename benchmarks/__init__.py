"""What drivetrain costs and what it gets right, measured beside hand-written PyTorch and other libraries."""

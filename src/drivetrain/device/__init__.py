"""Floor 1: which device a rank works on."""

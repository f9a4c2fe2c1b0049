"""What a training's command line runs."""

STAGES = {
    "fit": "train a module that is named by its path",
    "validate": "run its validation",
    "test": "run its test",
    "predict": "predict with it",
}

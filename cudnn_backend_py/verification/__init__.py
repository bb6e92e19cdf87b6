"""Compare a described GPU with the real one: cuDNN's verdicts and engine configs for three hundred graphs."""

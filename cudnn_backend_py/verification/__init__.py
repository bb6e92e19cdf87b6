"""A described GPU compared with the real one: cuDNN's answers to three hundred graphs for both."""

"""From a plan to a running kernel: buffers, variant packs, streams, CUDA graphs."""

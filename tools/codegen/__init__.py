"""Generator of cudnn_backend_py.generated from cudnn_graph.h and facts.toml."""

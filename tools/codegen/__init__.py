"""Generator of cudnn_backend_py.generated: cudnn_graph.h and facts.toml in, Python out. No one imports it."""

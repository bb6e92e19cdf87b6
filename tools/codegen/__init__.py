"""Generator of cudnn_backend_py.generated: cudnn_graph.h and facts.toml in, Python out. Nobody imports it."""

"""Generator of cudnn_backend_py.generated: reads cudnn_graph.h and facts.toml, writes Python. Not used at run time."""

# Generated from cudnn_graph.h 9.28.0 and facts.toml. Do not edit.
# seal: sha256:49b64cde85e909671cd9a5c7a29c4c8175e8422ab836583002758afa875dda69
# Command: python -m cudnn_backend_py.codegen
"""Machine-written facts about the cuDNN backend API; see REPORT.md for where each comes from."""

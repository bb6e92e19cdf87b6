# Generated from cudnn_graph.h 9.28.0 and facts.toml. Do not edit.
# seal: sha256:d367045370b9b7f47a19b2604647d5028ddfd2008b1393a9be95e5eb741e922c
# Command: python -m tools.codegen
"""Machine-written facts about the cuDNN backend API; see REPORT.md for where each comes from."""

"""The methods of ``GraphBuilder``, by family of operations."""

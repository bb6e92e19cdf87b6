"""Helpers of tests: graphs, generators of graphs, and other tools.

Fixed graphs, by name:

* ``graphs``: small values for tests of graphs themselves.
* ``operations``: a graph of each kind of operation, with as many of its fields as cuDNN accepts.
* ``built``: a graph of each kind of operation as a user writes it, with its verdict: those of ``docs/operations.md``.
* ``zoo``: forty graphs of all kinds, to compare targets and versions. ``families``: these and more, outside attention.
* ``edges``: numbers at the edges of pointwise modes, reductions, norms and products, with what cuDNN computes.
* ``refused``: graphs that cuDNN refuses, by reason. ``planted``: supported graphs with a known cause of refusal added.
* ``tests/known_issues``: graphs that cuDNN computes wrong, by the row of ``cudnn_backend_py/known_issues``.

Random graphs, from a seed:

* ``tools.campaign.graphs``: graphs of any family that most versions support.
* ``attention_cases``: attention problems with data and their results in float64. Its seeds are those of recorded runs.
* ``mutants``: graphs of ``operations``, ``zoo`` and ``attention_cases`` with random changes, most of them wrong.
* ``tools.records.random_operations``: convolutions and norms with results of PyTorch in float64, for a record.
"""

"""Helpers of tests: graphs, random graphs, reference results, child processes, and records of GPU runs.

Fixed graphs, by name:

* ``graphs``: small values for tests of graphs themselves.
* ``operations``: a graph of each kind of operation, with as many of its fields as cuDNN accepts.
* ``built``: a typical graph of each kind of operation, with its verdict: the graphs of ``docs/operations.md``.
* ``zoo``: forty graphs of all kinds, to compare targets and versions. ``families``: these and more, outside attention.
* ``edges``: inputs at the edges of pointwise modes, reductions, norms and products, with cuDNN's results.
* ``refused_graphs``: graphs that cuDNN refuses, by reason. ``cause_cases``: supported graphs with an added cause.
* ``tests/known_issues``: graphs with a known issue, by the row of ``cudnn_backend_py/known_issues``.

Random graphs, from a seed:

* ``tools.campaign.graphs``: graphs of any family that most versions support.
* ``attention_cases``: attention problems with data and their results in float64. Recorded runs have the same seeds.
* ``mutants``: graphs of ``operations``, ``zoo`` and ``attention_cases`` with random changes, most of them wrong.
* ``tools.records.random_operations``: convolutions and norms with results of PyTorch in float64, for a record.
"""

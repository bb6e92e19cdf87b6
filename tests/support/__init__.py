"""Helpers for tests: graphs, random graphs, reference results, child processes, and records of GPU runs.

Fixed graphs, by name:

* ``graphs``: small tensors, operations and graphs for tests without a library.
* ``operations``: a graph of each kind of operation, with as many of its fields as cuDNN accepts.
* ``built``: a typical graph of each kind of operation, with its verdict; ``docs/operations.md`` lists them.
* ``zoo``: forty graphs of all kinds, to compare targets and versions.
* ``families``: graphs other than attention, for which full cuDNN has more engines than a JIT wheel.
* ``edges``: graphs of one operation with edge-case inputs, to compare the interpreter with cuDNN.
* ``refused_graphs``: graphs that cuDNN refuses, by mechanism.
* ``cause_cases``: supported graphs with an edit that makes cuDNN refuse them.
* ``tests/known_issues``: graphs that show the known issues of ``cudnn_backend_py/known_issues``.

Random graphs, from a seed:

* ``tools.campaign.graphs``: graphs of any family that most versions support.
* ``attention_cases``: attention problems with data and float64 results. Records of GPU runs use the same seeds.
* ``mutants``: graphs of ``operations``, ``zoo`` and ``attention_cases`` with random changes, most of them invalid.
* ``tools.records.random_operations``: convolutions and norms with PyTorch's float64 results, for a record.
"""

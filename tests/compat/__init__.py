"""Compatibility of ``cudnn_backend_py.frontend``: cudnn-frontend's own tests, run with either module as ``cudnn``.

The tests are cudnn-frontend's own. They are cloned at a fixed commit and are not part of this repository::

    git clone https://github.com/NVIDIA/cudnn-frontend /tmp/cudnn-frontend
    git -C /tmp/cudnn-frontend checkout c4a97621eca52fa0c3a1862a411a16be580b25c6  # 1.24.0

The tests of version 1.32 are in folders (``core/graph``, ``norm/graph``). The commit of 1.32 is not public as a whole,
so each file is from the commit listed here. ``conftest.py`` and ``test_utils.py`` are those of 3929da2e, because later
ones query CUDA for a GPU before any test::

    core/test_enum_compatibility b808ebf7      core/graph/test_api_signature_parity 0e2d6748
    core/graph/test_execute_overload 51a3de73  core/graph/test_execute_workspace 55649e59
    core/graph/test_graph_native 341bf379      core/graph/test_kernel_cache d6d35d69
    core/graph/test_set_stream_cache 341bf379  core/graph/test_native_backend_lowering 0e15cb11
    core/graph/test_wrapper_graph 0af834f0     norm/graph/test_rmsnorm and norm_test_utils 245025ab
    conv/graph/test_conv_bias 752dc46d         conv/graph/test_conv_fixed 534de6d3
    conv/graph/test_conv_fuzzer 07b111f1       conv/graph/test_conv_genstats 73c5657e
    conv/graph/test_conv_reduction b1214d5c    conv/graph/test_conv_large_tensor_fuzzer 51a3de73
    conv/graph/test_wgrads 73af113d            gemm/graph/test_low_precision_matmul c1bb47df
    gemm/graph/test_moe_grouped_matmul a0312ccb
    quantize/graph/test_block_scale_quantize 4778c385
    quantize/graph/test_block_scale_quantize_dynamic_shape 7a40ba7d
    core/test_knob_vocabulary 73c5657e         core/graph/test_cuda_capture_lifetime 0ebdeece
    norm/graph/test_batchnorm 47030335         core/graph/test_ensure_current_context 7a40ba7d
    norm/graph/batchnorm_test_utils d0b7e376   core/graph/test_variant_pack_normalization 07b111f1
    norm/graph/test_instancenorm 07b111f1      norm/graph/test_batchnorm_fusion 94001d2e
    norm/graph/test_layernorm 245025ab         norm/graph/batchnorm_fusion_cases 361b85b9
    norm/graph/test_norm_fuzzer bd77903d

The last one and the convolution tests need ``sdpa/helpers.py``; that of 1.24.0 has the same functions. Without a GPU,
large convolution tensors are allocated in host memory: use ``PYTEST_XDIST_WORKER_COUNT=16`` and ``-n 0`` to get the
sizes of one of 16 workers.

Run these with ``-m "L0 or not L0"`` and ``-n 1``: without a GPU, two of them crash the process with cudnn-frontend.
Some files import modules that only cudnn-frontend has. These imports succeed, and only the use of such a module raises
an error, so that the other tests of the file run.

The attention tests are in ``sdpa/graph``, modules that they import in ``sdpa``, suites in ``sdpa/graph/suites``::

    test_flexible_sdpa 57c8fdf9, and of bprop 01a727ea   test_sdpa_custom_features 10bf12e8
    test_sdpa_edge_cases 73c5657e    common 752dc46d     knobs 07b111f1        registry f4f19cbe
    test_mhas_v2 01a727ea, also run in part with fp16 of that commit
    context: f16 f4f19cbe, fp8 f68634fe, mxfp8 d6d35d69  generation: f16 6f251065, fp8 57c8fdf9
    bprop: f16 c1bb47df, fp8 73c5657e, mxfp8 1054c528    models/catalog 51a3de73
    models: context d6d35d69, bprop 104a33b0, generation 47030335
    random_config 73c5657e   helpers 165beffd   fp16 and fp8 05e8b44f   fp16_ref and mxfp8 0b648e4e
    mxfp8_quant 83ddf536     blocked, fp8_ref and mxfp8_ref of 1.24, the last two with an argument ``stats=None``

``suites/conftest.py`` is not public. Write one with a fixture ``env_info``: a dict of ``gpu_arch``, ``gpu_info`` and
``cudnn_ver``. The listed fp16 requests no implementation of the backward pass, although the ids of
test_sdpa_custom_features name one. Two ids of bprop, and each backward pass of fp16 of 01a727ea, use an argument that
was added after 1.32. Run the suites with ``--fast --sample 64``, and test_mhas_v2 with ``--fast --sample 8``; its tests
without random problems run without these options (``--files`` accepts ``FILE::TEST``). Its
test_sdpa_thd_output_stride_int64 needs a helper of cudnn-frontend's own kernels.

Keep the folders ``test/python`` as they are: one test starts pytest two folders above its own. Python needs torch,
pytest, pytest-xdist, looseversion, numpy, click and rich; TransformerEngine only for the MXFP8 tests.
Unpack cudnn-frontend in a separate folder, so that either module can be imported as ``cudnn``::

    pip install --no-deps --target /tmp/fe nvidia-cudnn-frontend==1.32.0

Without a GPU, use a described one: torch's CUDA tensors become meta tensors, every graph gets the described device, and
an execute does nothing, but is recorded::

    python -m tests.compat run --module cudnn --path /tmp/fe --tests DIR --target h100 --cudnn 9.19.0 --out theirs.jsonl
    python -m tests.compat run --module frontend             --tests DIR --target h100 --cudnn 9.19.0 --out ours.jsonl
    python -m tests.compat compare theirs.jsonl ours.jsonl --out logs/NAME.json

``python -m tests.compat notebooks DIR/samples/python --module frontend --out logs/NAME.json`` runs each
notebook in a separate process, with the same options.

``python -m tests.compat facts --path /tmp/fe`` stores the public API of cudnn-frontend. ``make regen`` compares our API
with it in ``docs/frontend-names.md``.

``--fast`` builds no plans in the large files; NVRTC takes most of their time. ``--sample N`` runs one test in N, chosen
by a hash of its id, the same ones for both modules. ``--part`` selects another of these N parts, and ``--seed`` gives
other random problems. The output files of several runs with one module can be joined with ``cat`` for ``compare``.

With a GPU, use the same commands without ``--target`` and ``--cudnn``. A machine without network needs on
``PYTHONPATH`` or in site-packages: torch with its cuDNN, pytest, pytest-xdist with execnet, looseversion, click, rich,
platformdirs, the unpacked wheel of cudnn-frontend (for ``--path``), and the folder ``test/python``. cudnn-frontend 1.32
needs no other package for its import; its matmul graphs import ``cuda.bindings`` (package cuda-bindings, a dependency
of torch's CUDA builds). nvidia-cutlass-dsl and apache-tvm-ffi are not needed.

Every test is seeded by its id, so that both runs have the same problems. A run writes one JSON line per test::

    {"id", "file", "outcome", "reason", "stage", "executes", "graphs", "errors": [{"call", "type", "kind", "text"}],
     "errors_in_all", "seconds"}

If cuDNN cannot find NVRTC, add the folder of ``libnvrtc`` to ``LD_LIBRARY_PATH``: without NVRTC it supports almost no
graph, with either module.

``outcome`` is passed, skipped, failed, crashed (the process died) or "not run" (the file reached its time limit).
``stage`` is the last build step that a graph entered. ``graphs`` is the output of ``inspect`` for the first four
executed graphs: nodes, ports, parameters, dims, strides, types and uids must be equal. ``errors`` lists every exception
that a call of ``cudnn`` raised, also those that the test caught; ``kind`` has the base classes by which it can be
caught.
"""

"""Handles, streams, fork, driver and log on a machine with a GPU."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cudnn_backend_py import (
    Attr,
    Descriptor,
    DescriptorType,
    Handle,
    UsageError,
    capture_log,
    library,
    load_plan,
    open_target,
)
from cudnn_backend_py.target import Target, read_device, read_device_profile
from tests.gpu.execution.test_execute import build_first_plan, run_and_check_flash_attention
from tests.support.figures import append_measurement_to_run_record
from tests.support.flash import make_flash_graph
from tests.support.gpu_requirements import find_first_engine_config

AOT_PLAN_VARIABLE = "CUDNN_BACKEND_AOT_PLAN"


def test_the_real_driver_is_used() -> None:
    driver = library().driver
    assert driver.kind == "real"
    assert driver.devices >= 1


def test_the_properties_of_the_device_can_be_saved_and_opened_as_a_target(tmp_path: Path) -> None:
    import json

    properties = read_device(0)
    assert properties["deviceVer"] >= 500
    path = tmp_path / "here.json"
    path.write_text(json.dumps(properties))
    target = open_target(str(path))
    assert target.profile.title == properties["deviceName"]
    assert find_first_engine_config(make_flash_graph(), target).tag


def test_a_device_profile_has_the_properties_that_the_driver_reports() -> None:
    """A description of a GPU is read from the driver; cuDNN is queried only for properties that the driver lacks."""
    profile, properties = read_device_profile(0), read_device(0)
    assert (profile.sm, profile.title) == (properties["deviceVer"] // 10, properties["deviceName"])
    assert {name: profile.properties[name] for name in properties} == properties
    assert dict(profile.properties) == properties
    assert set(profile.sources) == set(properties)


def test_handle_sets_streams_and_closes() -> None:
    with Handle() as handle:
        assert handle.stream == 0
    handle.close()
    with pytest.raises(UsageError, match="descriptor-closed"):
        _ = handle.pointer


def test_a_handle_of_another_gpu_is_refused() -> None:
    from cuda.bindings import runtime

    target = open_target()
    plan = build_first_plan(make_flash_graph(), target)
    last = library().driver.devices - 1
    assert int(runtime.cudaSetDevice(last)[0]) == 0
    try:
        with Handle() as other:
            assert other.device == last
            pack = Descriptor(DescriptorType.VARIANT_PACK)
            pack.set(Attr.VARIANT_PACK_UNIQUE_IDS, (1,)).set(Attr.VARIANT_PACK_DATA_POINTERS, (1024,)).finalize()
            if last == 0:
                plan.descriptor.check_usable(DescriptorType.EXECUTION_PLAN)
            else:
                with pytest.raises(UsageError, match="bound to GPU 0, the given objects to GPU 1"):
                    plan.descriptor.execute(other, pack)
                config = Descriptor(DescriptorType.EXECUTION_PLAN).set(Attr.EXECUTION_PLAN_HANDLE, other)
                best = find_first_engine_config(make_flash_graph(), target)
                with pytest.raises(UsageError, match="handle-of-another-device"):
                    config.set(Attr.EXECUTION_PLAN_ENGINE_CONFIG, best.descriptor)
    finally:
        runtime.cudaSetDevice(0)
    run_and_check_flash_attention(plan)
    target.close()


def test_current_gpu_is_kept_when_a_handle_closes() -> None:
    from cuda.bindings import runtime

    last = library().driver.devices - 1
    assert int(runtime.cudaSetDevice(last)[0]) == 0
    other = Handle()
    runtime.cudaSetDevice(0)
    other.close()
    assert runtime.cudaGetDevice()[1] == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # xdist starts threads
def test_a_handle_made_before_a_fork_is_refused_in_the_child() -> None:
    handle = Handle()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _ = handle.pointer
            os.write(write, b"no error")
        except UsageError as error:
            os.write(write, error.code.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"handle-after-fork"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    handle.close()


def test_the_cudnn_log_contains_the_execute_call() -> None:
    target = open_target()
    plan = build_first_plan(make_flash_graph(), target)
    with capture_log() as log:
        run_and_check_flash_attention(plan)
    assert "cudnnBackendExecute" in {record.function for record in log.records}
    target.close()


def list_plan_files_of_environment_variable() -> list[str]:
    """Return the plan files named in an environment variable; they were built on a machine without a GPU."""
    return [path for path in os.environ.get(AOT_PLAN_VARIABLE, "").split(":") if path]


def test_plans_built_on_other_machines_run_here(tmp_path: Path) -> None:
    """Run each given plan file, and a plan that is built and saved on this machine."""
    target = open_target()
    own = tmp_path / "own.json"
    build_first_plan(make_flash_graph(), target).save(own)
    for path in [*list_plan_files_of_environment_variable(), str(own)]:
        check_result_of_loaded_plan(path, "plan saved here" if path == str(own) else "plan built without a GPU", target)
    target.close()


def check_result_of_loaded_plan(path: str, what: str, target: Target) -> None:
    start = time.perf_counter()
    plan = load_plan(path, target)
    load_ms = (time.perf_counter() - start) * 1e3
    error = run_and_check_flash_attention(plan)
    live = build_first_plan(make_flash_graph(), target)
    append_measurement_to_run_record(
        what,
        engine=plan.tag,
        load_ms=round(load_ms, 2),
        relative_frobenius=error,
        live_engine=live.tag,
        live_relative_frobenius=run_and_check_flash_attention(live),
    )
    assert int(plan.descriptor.get(Attr.EXECUTION_PLAN_WORKSPACE_SIZE)) == live.workspace_bytes

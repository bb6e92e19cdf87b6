"""``explain --code``: files of machine code and SASS, and the facts about kernels in text, HTML and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cudnn_backend_py import attention, save_graph
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.native.find import find_wheel_program
from cudnn_backend_py.plans.kernels import Kernel
from tests.support.typical_graphs import TYPICAL_GRAPHS

NVDISASM = """#!/bin/sh
test "$1" = -c && test -s "$2" && echo "SASS of $2"
"""


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    path = tmp_path / "attention.json"
    save_graph(attention.sdpa_forward(batch=1, heads=2, seq_q=256, head_dim=64), path)
    return str(path)


def run_explain(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments], catch_exceptions=False)


def install_fake_nvdisasm(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Write the script `text` as ``nvdisasm`` into a folder, and make it the only one on PATH."""
    folder.mkdir()
    (folder / "nvdisasm").write_text(text)
    (folder / "nvdisasm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("place", ["nvidia/cu13/bin", "nvidia/cuda_nvdisasm/bin"])
def test_the_program_of_a_wheel_is_found(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    program = tmp_path / place / "nvdisasm"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o644)
    assert find_wheel_program("nvdisasm") != str(program)  # it cannot be executed
    program.chmod(0o755)
    assert find_wheel_program("nvdisasm") == str(program)


@pytest.mark.parametrize("here", [(), ("--here",)])
def test_kernel_code_of_each_target_is_written_and_disassembled(
    graph_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: tuple[str, ...]
) -> None:
    install_fake_nvdisasm(tmp_path / "bin", monkeypatch, NVDISASM)
    folder = tmp_path / "new" / "code"
    done = run_explain(
        graph_file, "--target", "sm80", "--target", "sm90", "--code", str(folder), "--format", "json", *here
    )
    assert done.exit_code == 0
    verdicts = json.loads(done.stdout)
    built = [item for verdict in verdicts for item in verdict["candidates"] if item["state"] == "built"]
    stated = [kernel for item in built for kernel in item["kernels"]]
    assert [kernel["architecture"] for kernel in stated] == ["sm_80", "sm_90a"]
    for kernel in (Kernel(**item) for item in stated):
        cubin = folder / f"{kernel.file_name}.cubin"
        assert Kernel.from_cubin(kernel.name, cubin.read_bytes()) == kernel
        sass = folder / f"{kernel.file_name}.sass"
        assert sass.read_text() == f"SASS of {cubin}\n"
        assert f"code: {cubin}, {sass}" in done.stderr.splitlines()
    assert len(list(folder.iterdir())) == 2 * len(stated)


def test_a_missing_or_failing_disassembler_is_reported(
    graph_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "code"
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run_explain(graph_file, "--target", "sm90", "--code", str(folder))
    assert done.stderr.splitlines()[-1].startswith("no SASS: nvdisasm is not on PATH and in no wheel; ")
    install_fake_nvdisasm(tmp_path / "bin", monkeypatch, "#!/bin/sh\necho unknown architecture >&2; exit 3\n")
    done = run_explain(graph_file, "--target", "sm90", "--code", str(folder))
    (cubin,) = folder.iterdir()
    assert done.stderr.splitlines() == [
        f"no SASS of {cubin.name}: {tmp_path / 'bin' / 'nvdisasm'} ended with 3: unknown architecture",
        f"code: {cubin}",
    ]
    assert done.exit_code == 0


def test_explain_names_the_plans_without_kernel_code(graph_file: str, tmp_path: Path) -> None:
    path = tmp_path / "convolution.json"
    save_graph(TYPICAL_GRAPHS["convolution over three dims"].make(), path)
    folder = tmp_path / "code"
    done = run_explain(str(path), graph_file, "--target", "a100-80gb", "--target", "v100", "--code", str(folder))
    lines = done.stderr.splitlines()
    assert any("no code of convolution over three dims on a100-80gb: that of eng" in line for line in lines), lines
    assert "no code of sdpa_forward on v100: no plan was built" in lines
    assert len(list(folder.glob("*.cubin"))) == 1


def test_text_and_html_show_the_facts_about_kernels(graph_file: str) -> None:
    options = (graph_file, "--target", "sm90", "--build")
    (built,) = (
        item
        for item in json.loads(run_explain(*options, "--format", "json").stdout)["candidates"]
        if item["state"] == "built"
    )
    facts = str(Kernel(**built["kernels"][0]))
    for words in ("bytes of code of sm_90a", "168 registers", "1024 bytes of static shared memory", "local memory"):
        assert words in facts
    assert built["shared_memory_bytes"] > built["kernels"][0]["shared_bytes"]
    text = run_explain(*options, "-v").stdout
    assert facts in text
    assert f"shared memory {built['shared_memory_bytes']} bytes per block" in text
    assert f"kernel: {facts}" in run_explain(*options, "--format", "html").stdout


@pytest.mark.parametrize("other", [("--whatif",), ("--format", "archive")])
def test_the_code_option_is_refused_where_no_plan_is_shown(
    graph_file: str, tmp_path: Path, other: tuple[str, ...]
) -> None:
    done = run_explain(graph_file, "--target", "sm90", "--code", str(tmp_path), *other)
    assert done.exit_code == 2
    assert "cannot be combined with --code" in done.stderr

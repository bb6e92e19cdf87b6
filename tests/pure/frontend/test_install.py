"""``import cudnn`` imports this package's frontend only after an explicit step."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.frontend import built_graphs
from cudnn_backend_py.frontend.__main__ import main
from tests.support.child import ROOT, FinishedChild, run_code, run_python

FRONTEND_COMMAND = ("-m", "cudnn_backend_py.frontend")
SHOW_PROGRAM = """
import json, sys, cudnn
print(json.dumps({"argv": sys.argv, "name": __name__, "path": sys.path[0], "cudnn": cudnn.__file__}))
"""


def run_frontend(*arguments: str, **options: Any) -> FinishedChild:
    return run_python([*FRONTEND_COMMAND, *arguments], **options)


@pytest.fixture
def script_path(tmp_path: Path) -> Path:
    path = tmp_path / "show.py"
    path.write_text(SHOW_PROGRAM)
    return path


# install() and uninstall()


def test_importing_the_frontend_does_not_install_it() -> None:
    run_code("import sys, cudnn_backend_py.frontend; assert 'cudnn' not in sys.modules")


def test_install_makes_the_frontend_importable_as_cudnn() -> None:
    run_code("""
from cudnn_backend_py import frontend
made = frontend.install()
import cudnn
from cudnn import pygraph, data_type
from cudnn.wrapper import Graph
assert made is cudnn and frontend.install() is cudnn
assert (pygraph, data_type, Graph) == (frontend.pygraph, frontend.data_type, frontend.Graph)
assert (cudnn.__version__, cudnn.__file__) == (frontend.__version__, frontend.__file__)
assert set(frontend.__all__) <= set(dir(cudnn))
""")


def test_uninstall_restores_modules_and_target() -> None:
    run_code("""
import sys
from collections import Counter
import cudnn_backend_py.frontend.wrapper
from cudnn_backend_py.frontend import install, uninstall
from cudnn_backend_py.frontend.handles import default_target
before = set(sys.modules), list(sys.meta_path)
install("h100")
import cudnn.wrapper
assert default_target() == "h100-sxm"
uninstall()
uninstall()
assert (set(sys.modules), sys.meta_path) == before
assert default_target() is None
""")


def test_another_cudnn_module_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "cudnn.py").write_text("real = True")
    done = run_python(
        ["-c", "import cudnn, cudnn_backend_py.frontend as f; f.uninstall(); assert cudnn.real; f.install()"],
        environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.code == 1
    assert (
        f"UsageError: frontend-real-cudnn: another module called 'cudnn' is imported already: {tmp_path}" in done.stderr
    )


def test_an_unknown_target_installs_nothing() -> None:
    run_code("""
import sys
from collections import Counter
from cudnn_backend_py import UsageError
from cudnn_backend_py.frontend import install
try:
    install("h1000")
except UsageError as error:
    assert error.code == "unknown-target"
else:
    raise AssertionError
assert "cudnn" not in sys.modules
""")


def test_missing_submodules_raise_a_clear_error() -> None:
    """Submodules that the package lacks, and the class ``cudnn.tensor``, cannot be imported as modules."""
    run_code("""
import pickle
from importlib import import_module
from cudnn_backend_py import frontend
cudnn = frontend.install()
for name in ("ops", "engines.base", "native_sparse_attention", "tensor"):
    for kind in (ImportError, NotImplementedError):
        try:
            import_module(f"cudnn.{name}")
        except kind as error:
            assert str(error).startswith(f"frontend-not-offered: cudnn.{name} is not part of"), error
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
        else:
            raise AssertionError(name)
assert cudnn.tensor is frontend.tensor
""")


def test_submodules_of_cudnn_are_imported_from_the_frontend() -> None:
    run_code("""
from importlib import import_module
from cudnn_backend_py import frontend
cudnn = frontend.install()
import cudnn.experimental.ops, cudnn.graph_types, cudnn.nodes
from cudnn.experimental.ops import moe_grouped_matmul
assert cudnn.graph_types.Tensor is cudnn.Tensor is frontend.tensor
assert cudnn.nodes.Node is frontend.Node
assert not hasattr(cudnn, "ops")
assert cudnn.nodes.__spec__.name == "cudnn_backend_py.frontend.recorded"
try:
    cudnn.experimental.ops.rms_norm
except frontend.cudnnGraphNotSupportedError as error:
    assert "cudnn.experimental.ops.rms_norm is a kernel of cudnn-frontend's own" in str(error)
else:
    raise AssertionError
""")


def test_collect_env_prints_text_or_json() -> None:
    runs = [
        run_python(["-m", "cudnn_backend_py.frontend", "-m", "cudnn.collect_env", *more]) for more in ([], ["--json"])
    ]
    assert [done.code for done in runs] == [0, 0], runs
    assert "==== cuDNN, driver, GPUs ====" in runs[0].stdout
    assert set(json.loads(runs[1].stdout)) == {"cuDNN, driver, GPUs", "Packages", "Environment variables"}


# The module that runs programs


def test_a_script_runs_as_if_started_by_python(script_path: Path) -> None:
    done = run_frontend(str(script_path), "--target", "of the script", "-x", check=True)
    shown = json.loads(done.stdout)
    assert shown["argv"] == [str(script_path), "--target", "of the script", "-x"]
    assert (shown["name"], shown["path"]) == ("__main__", str(script_path.parent))
    assert shown["cudnn"].endswith("cudnn_backend_py/frontend/__init__.py")


def test_a_module_runs_as_if_started_by_python(script_path: Path) -> None:
    done = run_frontend(
        "--target",
        "h100",
        "-m",
        "show",
        "--help",
        cwd=script_path.parent,
        environment=make_environment_with_package(),
        check=True,
    )
    shown = json.loads(done.stdout)
    assert shown["argv"] == [str(script_path), "--help"]
    assert (shown["name"], shown["path"]) == ("__main__", str(script_path.parent))


def make_environment_with_package() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_script_has_the_same_exit_status_and_traceback_as_with_python(tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    path.write_text("import sys; sys.exit(7)")
    assert run_frontend(str(path)).code == 7
    path.write_text("1 / 0")
    done = run_frontend(str(path))
    assert done.code == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_child_processes_import_the_frontend_only_on_request(tmp_path: Path, script_path: Path) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(
        f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {str(script_path)!r}]).returncode)"
    )
    done = run_frontend(
        "--children",
        "--target",
        "h100",
        str(parent),
        cwd=tmp_path,
        environment=make_environment_with_package(),
        check=True,
    )
    assert json.loads(done.stdout)["cudnn"].endswith("cudnn_backend_py/frontend/__init__.py")
    done = run_frontend(str(parent), cwd=tmp_path, environment=make_environment_with_package())
    assert "cudnn_backend_py/frontend" not in done.stdout


def test_multiprocessing_workers_import_the_frontend(tmp_path: Path) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import multiprocessing\n"
        "def name(_):\n    import cudnn\n    return cudnn.data_type.HALF.name\n"
        "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(name, [0]))\n"
    )
    done = run_frontend(
        "--children", str(parent), cwd=tmp_path, environment=make_environment_with_package(), check=True
    )
    assert done.stdout == "['HALF']\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a script, or -m with a module, is needed"),
        (("-m",), "-m needs the name of a module"),
        (("--taget", "h100", "x.py"), "there is no option --taget"),
        (("nowhere.py",), "there is no file nowhere.py"),
    ],
)
def test_a_wrong_command_line_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert "cudnn" not in sys.modules


def test_an_unknown_target_is_refused(script_path: Path) -> None:
    done = run_frontend("--target", "h1000", str(script_path))
    assert done.code == 2
    assert done.stderr.startswith("unknown-target: ")


def test_help_shows_how_to_run_scripts_and_modules(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    assert "SCRIPT|NOTEBOOK|-m MODULE" in text
    assert "--target h100 -m pytest" in text


# the line at the end of a program


@pytest.mark.parametrize(
    ("ending", "code", "is_shown"),
    [("", 0, True), ("sys.exit()", 0, True), ("sys.exit(3)", 3, False), ("sys.stderr.close()", 0, False)],
)
def test_a_successful_program_ends_with_a_built_graph_summary(
    script_path: Path, ending: str, code: int, is_shown: bool
) -> None:
    script_path.write_text(f"import sys, cudnn\n{ending}\n")
    done = run_frontend(str(script_path))
    line = f"cudnn_backend_py.frontend ran {script_path}: no graph was built\n"
    assert (done.code, done.stderr) == (code, line if is_shown else "")


def test_built_graph_summary_lists_the_most_frequent_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_graphs, "BUILT_GRAPHS", Counter("b\nccc"))
    assert built_graphs.describe_built_graphs() == r"5 graphs were built: c (3), b, \n"
    monkeypatch.setattr(built_graphs, "BUILT_GRAPHS", Counter("abcdefg"))
    assert built_graphs.describe_built_graphs() == "7 graphs were built: a, b, c, d, e, 2 more names"


def test_the_version_option_comes_before_the_program(script_path: Path) -> None:
    refused = run_frontend(str(script_path), "--cudnn=9.19")
    assert (refused.code, refused.stdout) == (2, "")
    assert (
        f"--cudnn must come before the program: python -m cudnn_backend_py.frontend --cudnn VERSION {script_path}"
        in (refused.stderr)
    )
    passed = run_frontend("--", str(script_path), "--cudnn", "9.19")
    assert json.loads(passed.stdout)["argv"] == [str(script_path), "--cudnn", "9.19"]
    malformed = run_frontend("--cudnn", "nine", str(script_path))
    assert (malformed.code, malformed.stderr.partition(":")[0]) == (2, "cudnn-version-malformed")

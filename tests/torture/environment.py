"""Judge while the environment changes: each verdict must equal the verdict of a new process at that time.

Working folder, target files, environment variables, library files, installed patch versions and file times change at
random, between queries and during them. The expected answer for the current environment comes from a fresh process
without cached answers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cudnn_backend_py import DataType, EnvironmentNotReady, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.diagnose import Judge, Query, matrix
from cudnn_backend_py.diagnose.surveys.matrix import Cell
from cudnn_backend_py.target import find_profile
from cudnn_backend_py.versions.store import get_default_root, make_environment_of_installed_cudnn, require_installed
from examples import flash_forward, forum_two_matmul
from tests.support.child import run_code
from tests.torture.harness import BrokenGuarantee

STEPS_PER_ROUND = 60
TARGETS = ("sm80", "sm89", "sm90", "sm100")
SOURCE_VERSIONS = ("9.14.0", "9.19.0", "9.24.0")  # versions to install under other names
TF32_VARIABLE = "NVIDIA_TF32_OVERRIDE"
IRRELEVANT_VARIABLES = ("LANG", "CUDNN_VERSION", "COLUMNS", "CUDNN_LOGLEVEL_DBG")
PATCHED_VERSION = "9.90"  # installed in several patch versions
FILES_CHANGED_CODE = "cudnn-files-changed"

FRESH_EXPLAIN_PROGRAM = """
import json, sys
from dataclasses import asdict
from cudnn_backend_py import explain
from cudnn_backend_py.diagnose.surveys.matrix import Cell
from tests.torture.environment import make_environment_dependent_graphs
name, target = sys.argv[1:]
cell = Cell.from_verdict(explain(make_environment_dependent_graphs()[name], target))
print("\\n" + json.dumps(asdict(cell)))
"""

NEW_MATRIX_PROGRAM = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from cudnn_backend_py.diagnose import matrix
from tests.torture.environment import make_environment_dependent_graphs
names, targets, versions, cache = json.loads(sys.argv[1])
graphs = make_environment_dependent_graphs()
found = matrix({name: graphs[name] for name in names}, targets, versions, cache=Path(cache), progress=False)
print("\\n" + json.dumps([[*place, asdict(cell)] for place, cell in found.cells.items()]))
"""


def run_random_round(seed: int, folder: Path, steps: int = STEPS_PER_ROUND) -> Counter[str]:
    """Change the environment and judge, many times."""
    before, here = dict(os.environ), Path.cwd()
    try:
        with ChangingEnvironment(random.Random(seed), folder) as world:
            return world.run_steps(steps)
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


@cache
def make_environment_dependent_graphs() -> dict[str, Graph]:
    """Return graphs with verdicts that depend on the target, the version, or the environment variable for TF32."""
    tf32 = GraphBuilder("tf32", io_type=DataType.FLOAT)
    product = tf32.matmul(tf32.tensor("a", (2, 16, 3)), tf32.tensor("b", (2, 3, 17)))
    tf32.pointwise(PointwiseMode.IDENTITY, tf32.pointwise(PointwiseMode.SQRT, product), virtual=False)
    plain = GraphBuilder("plain", io_type=DataType.HALF)
    plain.pointwise(PointwiseMode.RELU_FWD, plain.tensor("x", (1, 64, 64)), virtual=False)
    all_of_them = (tf32.graph(), plain.graph(), forum_two_matmul.graph(), flash_forward.graph())
    return {graph.name: graph for graph in all_of_them}


_expected_answers: dict[tuple[str, str, str, str | None], Cell] = {}
_START_ENVIRONMENT, _START_VERSION_STORE = dict(os.environ), get_default_root()


def judge_in_fresh_process(name: str, target: str, source: str, switch: str | None) -> Cell:
    """Return the verdict of a fresh process that uses the cuDNN libraries in their original folder."""
    key = (name, target, source, switch)
    if key not in _expected_answers:
        environment = make_environment_of_installed_cudnn(require_installed(source, root=_START_VERSION_STORE))
        environment = {
            **_START_ENVIRONMENT,
            **{one: environment[one] for one in environment if one.startswith("CUDNN_BACKEND_")},
        }
        environment |= {} if switch is None else {TF32_VARIABLE: switch}
        done = run_code(
            f"import sys\nsys.argv = {['', name, target]!r}\n{FRESH_EXPLAIN_PROGRAM}", environment=environment
        )
        _expected_answers[key] = Cell.from_dict(json.loads(done.stdout.splitlines()[-1]))
    return _expected_answers[key]


class ChangingEnvironment:
    """Folders, files and variables that change, a record of their contents, and judges that read them."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.kept = folder / "kept"
        self.root = folder / "root"
        self.root.mkdir(mode=0o700)
        self.targets: dict[Path, str] = {}
        self.patches: dict[int, str] = {}
        self.own = ""
        self.place = folder
        self.number = 0
        self.sources = {version: self._copy_installed_version(version) for version in SOURCE_VERSIONS}
        for name in ("one", "two"):
            (folder / name).mkdir()
            self._write_target(folder / name / "t.json", self.chance.choice(TARGETS))
        os.environ["CUDNN_BACKEND_CACHE"] = str(self.root)
        os.environ["CUDNN_BACKEND_LIBRARY"] = str(folder / "own")
        os.environ.pop(TF32_VARIABLE, None)
        self.change_working_folder()
        self._install_patch_version(0, SOURCE_VERSIONS[0])
        self.replace_library_named_by_variable()

    def __enter__(self) -> ChangingEnvironment:
        self.judge = Judge()
        self.threads = ThreadPoolExecutor(1)
        self.processes = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self

    def __exit__(self, *_exception: object) -> None:
        self.judge.close()
        self.threads.shutdown()
        self.processes.shutdown()

    def run_steps(self, steps: int) -> Counter[str]:
        changes = [
            *(
                self.change_working_folder,
                self.change_target_file,
                self.change_target_file,
                self.change_tf32_variable,
                self.change_tf32_variable,
            ),
            *(
                self.change_irrelevant_variable,
                self.replace_library_named_by_variable,
                self.add_or_remove_cudnn_patch_version,
                self.change_file_times,
            ),
        ]
        queries = [
            *(
                self.judge_in_this_process,
                self.judge_in_this_process,
                self.judge_in_children,
                self.judge_in_children,
                self.judge_in_threads,
            ),
            *(self.judge_in_process_pool, self.judge_during_environment_change, self.judge_in_new_process),
        ]
        for _ in range(steps):
            for _ in range(self.chance.randrange(3)):
                change = self.chance.choice(changes)
                change()
                self.counts[change.__name__.replace("_", " ")] += 1
            self.chance.choice(queries)()
        return self.counts

    # changes

    def change_working_folder(self) -> None:
        self.place = self.folder / self.chance.choice(("one", "two"))
        os.chdir(self.place)

    def change_target_file(self) -> None:
        self._write_target(self.chance.choice(list(self.targets)), self.chance.choice(TARGETS))

    def _write_target(self, path: Path, name: str) -> None:
        text = find_profile(name).json()
        if self.chance.random() < 0.5 and path.exists():
            path.write_text(text)  # overwrite the file in place
        else:
            path.with_suffix(".new").write_text(text)
            os.replace(path.with_suffix(".new"), path)
        self.targets[path] = name

    def change_tf32_variable(self) -> None:
        if self.chance.random() < 0.5:
            os.environ.pop(TF32_VARIABLE, None)
        else:
            os.environ[TF32_VARIABLE] = "0"

    def change_irrelevant_variable(self) -> None:
        name = self.chance.choice(IRRELEVANT_VARIABLES)
        if os.environ.pop(name, None) is None:
            os.environ[name] = self.chance.choice(("0", "1"))

    def replace_library_named_by_variable(self) -> None:
        """Replace the library files of ``CUDNN_BACKEND_LIBRARY`` by files with the same sizes and times."""
        self.own = self.chance.choice(SOURCE_VERSIONS)
        self._link_files(self.sources[self.own] / "lib", self.folder / "own")

    def add_or_remove_cudnn_patch_version(self) -> None:
        """Install or remove a patch version of cuDNN 9.90, which may change the version that ``9.90`` means."""
        patch = self.chance.randrange(3)
        if patch in self.patches and len(self.patches) > 1:
            shutil.rmtree(self.root / f"{PATCHED_VERSION}.{patch}.1-cu12")
            del self.patches[patch]
        elif patch not in self.patches:
            self._install_patch_version(patch, self.chance.choice(SOURCE_VERSIONS))

    def change_file_times(self) -> None:
        """Change the times of random files: target files, stored verdicts, and libraries outside the version store."""
        files = [*self.targets, *(self.folder / "own").iterdir(), *self.kept.glob("*.answer")]
        for file in self.chance.sample(files, min(5, len(files))):
            moment = self.chance.choice((0, 10**9, 4 * 10**9))
            os.utime(file, (moment, moment))

    def _copy_installed_version(self, version: str) -> Path:
        """Copy an installed version; with hard links, the times of the installed files would change."""
        installed = require_installed(version)
        copy = self.folder / "sources" / version
        shutil.copytree(installed.path, copy)
        (copy / "lib").symlink_to(copy / installed.library.parent.relative_to(installed.path))
        return copy

    def _link_files(self, source: Path, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for file in source.iterdir():
            self.number += 1
            new = folder.parent / f"new-{self.number}"
            if self.chance.random() < 0.2:
                shutil.copy2(file, new)
            else:
                os.link(file, new)
            os.replace(new, folder / file.name)

    def _install_patch_version(self, patch: int, source: str) -> None:
        folder = self.root / f"{PATCHED_VERSION}.{patch}.1-cu12"
        shutil.copytree(self.sources[source], folder, copy_function=os.link, ignore=shutil.ignore_patterns("lib"))
        record = folder / "installed.json"
        data = json.loads(record.read_text())
        record.unlink()
        record.write_text(json.dumps({**data, "version": f"{PATCHED_VERSION}.{patch}.1"}))
        library = self.sources[source] / "lib"
        inside = folder / library.resolve().relative_to(self.sources[source])
        inside.mkdir(exist_ok=True)
        for file in library.iterdir():
            if not (inside / file.name).exists():
                os.link(file, inside / file.name)
        self.patches[patch] = source

    # queries

    def list_versions(self) -> dict[str, str]:
        """Return the source version of the library files that each version name currently refers to."""
        named = {PATCHED_VERSION: self.patches[max(self.patches)], "default": self.own}
        named |= {f"{PATCHED_VERSION}.{patch}": source for patch, source in self.patches.items()}
        return named

    def find_gpu_name_of_target(self, target: str) -> str:
        """Return the described GPU that a target name currently refers to."""
        return self.targets[self.place / target] if target.endswith(".json") else target

    def make_random_matrix_query(self) -> tuple[dict[str, Graph], list[str], dict[str, str]]:
        names = self.chance.sample(list(make_environment_dependent_graphs()), self.chance.randrange(1, 5))
        targets = ["t.json", self.chance.choice(TARGETS), str(self.chance.choice(list(self.targets)))]
        versions = self.list_versions()
        chosen = self.chance.sample(list(versions), min(len(versions), self.chance.randrange(1, 5)))
        return (
            {name: make_environment_dependent_graphs()[name] for name in names},
            targets[: self.chance.randrange(1, 4)],
            {one: versions[one] for one in chosen},
        )

    def judge_matrix_in_fresh_processes(
        self, drawn: tuple[dict[str, Graph], list[str], dict[str, str]]
    ) -> dict[tuple[str, str, str], Cell]:
        named, targets, versions = drawn
        switch = os.environ.get(TF32_VARIABLE)
        return {
            (graph, target, version): judge_in_fresh_process(
                graph, self.find_gpu_name_of_target(target), source, switch
            )
            for graph in named
            for target in targets
            for version, source in versions.items()
        }

    def check_matrix_cells(
        self, who: str, wanted: Mapping[Any, Cell], found: Mapping[Any, Cell], *, also: str = ""
    ) -> None:
        for place, cell in found.items():
            self.counts[f"queries answered by {who}"] += 1
            if also and cell.cause == also:
                self.counts[f"queries without an answer: {also}"] += 1
            elif cell != wanted[place]:
                raise BrokenGuarantee(f"{who} answered {cell} for {place}, a fresh process answers {wanted[place]}")
        self.counts["queries"] += len(found)

    def judge_in_this_process(self) -> None:
        named, _, _ = drawn = self.make_random_matrix_query()
        wanted = self.judge_matrix_in_fresh_processes(drawn)
        for graph, target, version in self.chance.sample(list(wanted), min(4, len(wanted))):
            question = Query(named[graph], target, None if version == "default" else version)
            found = Cell.from_verdict(self.judge.run_query(question))
            self.check_matrix_cells("a running judge", wanted, {(graph, target, version): found})

    def _judge_matrix(self, drawn: Any, executor: Executor | None = None) -> dict[tuple[str, str, str], Cell]:
        named, targets, versions = drawn
        found = matrix(named, targets, list(versions), executor=executor, cache=self.kept, progress=False, workers=1)
        self.counts["stored answers"] += len(found.cells) - found.judged_count
        return dict(found.cells)

    def judge_in_children(self) -> None:
        drawn = self.make_random_matrix_query()
        self.check_matrix_cells("children", self.judge_matrix_in_fresh_processes(drawn), self._judge_matrix(drawn))

    def judge_in_threads(self) -> None:
        drawn = self.make_random_matrix_query()
        self.check_matrix_cells(
            "an executor of threads",
            self.judge_matrix_in_fresh_processes(drawn),
            self._judge_matrix(drawn, self.threads),
        )

    def judge_in_process_pool(self) -> None:
        drawn = self.make_random_matrix_query()
        self.check_matrix_cells(
            "an executor of processes",
            self.judge_matrix_in_fresh_processes(drawn),
            self._judge_matrix(drawn, self.processes),
        )

    def judge_in_new_process(self) -> None:
        named, targets, versions = drawn = self.make_random_matrix_query()
        wanted = self.judge_matrix_in_fresh_processes(drawn)
        arguments = json.dumps([list(named), targets, list(versions), str(self.kept)])
        code = f"import sys\nsys.argv = {['', arguments]!r}\n{NEW_MATRIX_PROGRAM}"
        done = run_code(code, cwd=self.place, environment={**os.environ, "PYTHONPATH": _START_PYTHON_PATH})
        lines = json.loads(done.stdout.splitlines()[-1])
        self.check_matrix_cells("a new process", wanted, {tuple(place): Cell.from_dict(cell) for *place, cell in lines})

    def judge_during_environment_change(self) -> None:
        """Check that answers are all from before a change or all from after it, or report changed library files."""
        drawn = self.make_random_matrix_query()
        before = self.judge_matrix_in_fresh_processes(drawn)
        change: Callable[[], None] = self.chance.choice(
            (self.change_tf32_variable, self.replace_library_named_by_variable)
        )
        with self._run_change_during_block(change):
            try:
                found = self._judge_matrix(drawn)
            except EnvironmentNotReady as error:
                if error.code != FILES_CHANGED_CODE:
                    raise
                found = {}
        after = self.judge_matrix_in_fresh_processes(
            (drawn[0], drawn[1], {name: self.list_versions()[name] for name in drawn[2]})
        )
        given = [place for place, cell in found.items() if cell.cause != FILES_CHANGED_CODE]
        is_later = any(found[place] != before[place] for place in given)
        self.check_matrix_cells(
            "children during a change", after if is_later else before, found, also=FILES_CHANGED_CODE
        )

    @contextmanager
    def _run_change_during_block(self, change: Callable[[], None]) -> Iterator[None]:
        begun = threading.Event()

        def change_after_delay() -> None:
            begun.wait(self.chance.uniform(0.03, 0.6))
            change()

        thread = threading.Thread(target=change_after_delay)
        thread.start()
        try:
            yield
        finally:
            begun.set()
            thread.join()


_START_PYTHON_PATH = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))

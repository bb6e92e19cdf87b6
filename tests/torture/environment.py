"""A changing environment: each answer must equal that of a new process at the time of the query.

Working folder, target files, environment variables, library files, installed patch versions and file times change at
random, between queries and during them. A fresh process, without cache and judge, gives the expected answer
for the current content of the folders, which the test keeps track of.
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
from cudnn_backend_py.versions.store import child_environment, default_root, require_installed
from examples import flash_forward, forum_two_matmul
from tests.support.child import run_code
from tests.torture.harness import Broken

STEPS = 60  # per round
TARGETS = ("sm80", "sm89", "sm90", "sm100")
SOURCES = ("9.14.0", "9.19.0", "9.24.0")  # versions with files that are installed under other names
SWITCH = "NVIDIA_TF32_OVERRIDE"
IRRELEVANT = ("LANG", "CUDNN_VERSION", "COLUMNS", "CUDNN_LOGLEVEL_DBG")
NAME = "9.90"  # of the version that is installed in several patches
CHANGED = "cudnn-files-changed"

FRESH = """
import json, sys
from dataclasses import asdict
from cudnn_backend_py import explain
from cudnn_backend_py.diagnose.surveys.matrix import Cell
from tests.torture.environment import graphs
name, target = sys.argv[1:]
cell = Cell.of(explain(graphs()[name], target))
print("\\n" + json.dumps(asdict(cell)))
"""

NEW_PROCESS = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from cudnn_backend_py.diagnose import matrix
from tests.torture.environment import graphs
names, targets, versions, cache = json.loads(sys.argv[1])
found = matrix({name: graphs()[name] for name in names}, targets, versions, cache=Path(cache), progress=False)
print("\\n" + json.dumps([[*place, asdict(cell)] for place, cell in found.cells.items()]))
"""


def attack(seed: int, folder: Path, steps: int = STEPS) -> Counter[str]:
    """Change the environment and judge, many times."""
    before, here = dict(os.environ), Path.cwd()
    try:
        with World(random.Random(seed), folder) as world:
            return world.run(steps)
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


@cache
def graphs() -> dict[str, Graph]:
    """Return graphs with answers that depend on the target, the version, or the switch for TF32."""
    tf32 = GraphBuilder("tf32", io_type=DataType.FLOAT)
    product = tf32.matmul(tf32.tensor("a", (2, 16, 3)), tf32.tensor("b", (2, 3, 17)))
    tf32.pointwise(PointwiseMode.IDENTITY, tf32.pointwise(PointwiseMode.SQRT, product), virtual=False)
    plain = GraphBuilder("plain", io_type=DataType.HALF)
    plain.pointwise(PointwiseMode.RELU_FWD, plain.tensor("x", (1, 64, 64)), virtual=False)
    all_of_them = (tf32.graph(), plain.graph(), forum_two_matmul.graph(), flash_forward.graph())
    return {graph.name: graph for graph in all_of_them}


_expected: dict[tuple[str, str, str, str | None], Cell] = {}
_START, _ROOT = dict(os.environ), default_root()


def expected(name: str, target: str, source: str, switch: str | None) -> Cell:
    """Return the answer of a fresh process, with the libraries in their original place."""
    key = (name, target, source, switch)
    if key not in _expected:
        environment = child_environment(require_installed(source, root=_ROOT))
        environment = {**_START, **{one: environment[one] for one in environment if one.startswith("CUDNN_BACKEND_")}}
        environment |= {} if switch is None else {SWITCH: switch}
        done = run_code(f"import sys\nsys.argv = {['', name, target]!r}\n{FRESH}", environment=environment)
        _expected[key] = Cell.from_dict(json.loads(done.stdout.splitlines()[-1]))
    return _expected[key]


class World:
    """Folders, files and variables, their known contents, and the judges."""

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
        self.sources = {version: self._copy_source(version) for version in SOURCES}
        for name in ("one", "two"):
            (folder / name).mkdir()
            self._write_target(folder / name / "t.json", self.chance.choice(TARGETS))
        os.environ["CUDNN_BACKEND_CACHE"] = str(self.root)
        os.environ["CUDNN_BACKEND_LIBRARY"] = str(folder / "own")
        os.environ.pop(SWITCH, None)
        self.change_folder()
        self._install(0, SOURCES[0])
        self.change_own_library()

    def __enter__(self) -> World:
        self.judge = Judge()
        self.threads = ThreadPoolExecutor(1)
        self.processes = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return self

    def __exit__(self, *_exception: object) -> None:
        self.judge.close()
        self.threads.shutdown()
        self.processes.shutdown()

    def run(self, steps: int) -> Counter[str]:
        changes = [
            *(self.change_folder, self.change_target, self.change_target, self.change_switch, self.change_switch),
            *(self.change_irrelevant, self.change_own_library, self.change_patches, self.change_times),
        ]
        queries = [
            *(
                self.judge_in_process,
                self.judge_in_process,
                self.judge_in_children,
                self.judge_in_children,
                self.judge_in_threads,
            ),
            *(self.judge_in_processes, self.judge_during_change, self.judge_in_new_process),
        ]
        for _ in range(steps):
            for _ in range(self.chance.randrange(3)):
                change = self.chance.choice(changes)
                change()
                self.counts[change.__name__.replace("_", " ")] += 1
            self.chance.choice(queries)()
        return self.counts

    # changes

    def change_folder(self) -> None:
        self.place = self.folder / self.chance.choice(("one", "two"))
        os.chdir(self.place)

    def change_target(self) -> None:
        self._write_target(self.chance.choice(list(self.targets)), self.chance.choice(TARGETS))

    def _write_target(self, path: Path, name: str) -> None:
        text = find_profile(name).json()
        if self.chance.random() < 0.5 and path.exists():
            path.write_text(text)  # in place
        else:
            path.with_suffix(".new").write_text(text)
            os.replace(path.with_suffix(".new"), path)
        self.targets[path] = name

    def change_switch(self) -> None:
        if self.chance.random() < 0.5:
            os.environ.pop(SWITCH, None)
        else:
            os.environ[SWITCH] = "0"

    def change_irrelevant(self) -> None:
        name = self.chance.choice(IRRELEVANT)
        if os.environ.pop(name, None) is None:
            os.environ[name] = self.chance.choice(("0", "1"))

    def change_own_library(self) -> None:
        """Replace the library files of ``CUDNN_BACKEND_LIBRARY``; each new file keeps size and time of the old one."""
        self.own = self.chance.choice(SOURCES)
        self._put(self.sources[self.own] / "lib", self.folder / "own")

    def change_patches(self) -> None:
        """Install or remove a patch version: the meaning of ``9.90`` changes."""
        patch = self.chance.randrange(3)
        if patch in self.patches and len(self.patches) > 1:
            shutil.rmtree(self.root / f"{NAME}.{patch}.1-cu12")
            del self.patches[patch]
        elif patch not in self.patches:
            self._install(patch, self.chance.choice(SOURCES))

    def change_times(self) -> None:
        """Set the times of files: target files, stored answers, and libraries without a recorded time."""
        files = [*self.targets, *(self.folder / "own").iterdir(), *self.kept.glob("*.answer")]
        for file in self.chance.sample(files, min(5, len(files))):
            moment = self.chance.choice((0, 10**9, 4 * 10**9))
            os.utime(file, (moment, moment))

    def _copy_source(self, version: str) -> Path:
        """Copy an installed version: hard links would change the times of the installed files."""
        installed = require_installed(version)
        copy = self.folder / "sources" / version
        shutil.copytree(installed.path, copy)
        (copy / "lib").symlink_to(copy / installed.library.parent.relative_to(installed.path))
        return copy

    def _put(self, source: Path, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for file in source.iterdir():
            self.number += 1
            new = folder.parent / f"new-{self.number}"
            if self.chance.random() < 0.2:
                shutil.copy2(file, new)
            else:
                os.link(file, new)
            os.replace(new, folder / file.name)

    def _install(self, patch: int, source: str) -> None:
        folder = self.root / f"{NAME}.{patch}.1-cu12"
        shutil.copytree(self.sources[source], folder, copy_function=os.link, ignore=shutil.ignore_patterns("lib"))
        record = folder / "installed.json"
        data = json.loads(record.read_text())
        record.unlink()
        record.write_text(json.dumps({**data, "version": f"{NAME}.{patch}.1"}))
        library = self.sources[source] / "lib"
        inside = folder / library.resolve().relative_to(self.sources[source])
        inside.mkdir(exist_ok=True)
        for file in library.iterdir():
            if not (inside / file.name).exists():
                os.link(file, inside / file.name)
        self.patches[patch] = source

    # queries

    def versions(self) -> dict[str, str]:
        """Return the names of versions, each with the source of the current files."""
        named = {NAME: self.patches[max(self.patches)], "default": self.own}
        named |= {f"{NAME}.{patch}": source for patch, source in self.patches.items()}
        return named

    def content(self, target: str) -> str:
        """Return the described GPU that a name now stands for."""
        return self.targets[self.place / target] if target.endswith(".json") else target

    def draw(self) -> tuple[dict[str, Graph], list[str], dict[str, str]]:
        names = self.chance.sample(list(graphs()), self.chance.randrange(1, 5))
        targets = ["t.json", self.chance.choice(TARGETS), str(self.chance.choice(list(self.targets)))]
        versions = self.versions()
        chosen = self.chance.sample(list(versions), min(len(versions), self.chance.randrange(1, 5)))
        return (
            {name: graphs()[name] for name in names},
            targets[: self.chance.randrange(1, 4)],
            {one: versions[one] for one in chosen},
        )

    def wanted(self, drawn: tuple[dict[str, Graph], list[str], dict[str, str]]) -> dict[tuple[str, str, str], Cell]:
        named, targets, versions = drawn
        switch = os.environ.get(SWITCH)
        return {
            (graph, target, version): expected(graph, self.content(target), source, switch)
            for graph in named
            for target in targets
            for version, source in versions.items()
        }

    def check(self, who: str, wanted: Mapping[Any, Cell], found: Mapping[Any, Cell], *, also: str = "") -> None:
        for place, cell in found.items():
            self.counts[f"questions to {who}"] += 1
            if also and cell.cause == also:
                self.counts[f"answers withheld: {also}"] += 1
            elif cell != wanted[place]:
                raise Broken(f"{who} about {place}: {cell}, a fresh process says {wanted[place]}")
        self.counts["questions"] += len(found)

    def judge_in_process(self) -> None:
        named, _, _ = drawn = self.draw()
        wanted = self.wanted(drawn)
        for graph, target, version in self.chance.sample(list(wanted), min(4, len(wanted))):
            question = Query(named[graph], target, None if version == "default" else version)
            found = Cell.of(self.judge.run_query(question))
            self.check("a running judge", wanted, {(graph, target, version): found})

    def _matrix(self, drawn: Any, executor: Executor | None = None) -> dict[tuple[str, str, str], Cell]:
        named, targets, versions = drawn
        found = matrix(named, targets, list(versions), executor=executor, cache=self.kept, progress=False, workers=1)
        self.counts["answers from disk"] += len(found.cells) - found.asked
        return dict(found.cells)

    def judge_in_children(self) -> None:
        drawn = self.draw()
        self.check("children", self.wanted(drawn), self._matrix(drawn))

    def judge_in_threads(self) -> None:
        drawn = self.draw()
        self.check("an executor of threads", self.wanted(drawn), self._matrix(drawn, self.threads))

    def judge_in_processes(self) -> None:
        drawn = self.draw()
        self.check("an executor of processes", self.wanted(drawn), self._matrix(drawn, self.processes))

    def judge_in_new_process(self) -> None:
        named, targets, versions = drawn = self.draw()
        wanted = self.wanted(drawn)
        arguments = json.dumps([list(named), targets, list(versions), str(self.kept)])
        code = f"import sys\nsys.argv = {['', arguments]!r}\n{NEW_PROCESS}"
        done = run_code(code, cwd=self.place, environment={**os.environ, "PYTHONPATH": _START_PATH})
        lines = json.loads(done.stdout.splitlines()[-1])
        self.check("a new process", wanted, {tuple(place): Cell.from_dict(cell) for *place, cell in lines})

    def judge_during_change(self) -> None:
        """Check that all answers are from before the change or all from after it; changed library files are noticed."""
        drawn = self.draw()
        before = self.wanted(drawn)
        change: Callable[[], None] = self.chance.choice((self.change_switch, self.change_own_library))
        with self._later(change):
            try:
                found = self._matrix(drawn)
            except EnvironmentNotReady as error:
                if error.code != CHANGED:
                    raise
                found = {}
        after = self.wanted((drawn[0], drawn[1], {name: self.versions()[name] for name in drawn[2]}))
        given = [place for place, cell in found.items() if cell.cause != CHANGED]
        is_later = any(found[place] != before[place] for place in given)
        self.check("children during a change", after if is_later else before, found, also=CHANGED)

    @contextmanager
    def _later(self, change: Callable[[], None]) -> Iterator[None]:
        begun = threading.Event()

        def act() -> None:
            begun.wait(self.chance.uniform(0.03, 0.6))
            change()

        thread = threading.Thread(target=act)
        thread.start()
        try:
            yield
        finally:
            begun.set()
            thread.join()


_START_PATH = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))

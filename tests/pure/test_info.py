"""The common header of JSON records: command and commit."""

import json
import os
import subprocess
import sys

import pytest

from cudnn_backend_py.info import find_git_commit

PROGRAM = (
    "import json; from cudnn_backend_py.info import make_measurement_record_header as make; "
    "print(json.dumps(make('kind')))"
)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-m", "named", "cost", "{}/of me/r.json"], "python -m named cost r.json"),
        (["-m", "named", "--output={}/r.json", "--only", "x/y"], "python -m named --output=r.json --only x/y"),
        (["{}/cudnn-backend", "bench", "{}/logs/"], "cudnn-backend bench logs/"),
    ],
)
def test_recorded_command_contains_no_absolute_path(words, command, tmp_path):
    for file in ("named.py", "cudnn-backend"):
        (tmp_path / file).write_text(PROGRAM)
    given = [word.replace("{}", str(tmp_path)) for word in words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, *given], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["command"] == command
    assert str(tmp_path) not in done.stdout


def test_recorded_commit_names_the_head_of_the_repository(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDNN_BACKEND_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_git_commit(tmp_path) == "unknown"

    def run_git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    run_git("init", "-q")
    (tmp_path / "file").write_text("one")
    run_git("add", "file")
    run_git("commit", "-qm", "one")
    run_git("tag", "-a", "v1", "-m", "one")
    head = run_git("rev-parse", "HEAD")
    assert find_git_commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert find_git_commit(tmp_path) == f"{head}-dirty"
    monkeypatch.setenv("PATH", "")
    assert find_git_commit(tmp_path) == "unknown"
    monkeypatch.setenv("CUDNN_BACKEND_COMMIT", "abc")
    assert find_git_commit(tmp_path) == "abc"

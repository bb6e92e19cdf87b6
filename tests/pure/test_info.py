"""Records of figures: how each begins."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = "import json; from cudnn_backend_py.info import start_record; print(json.dumps(start_record('kind')))"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-m", "named", "cost", "{}/of me/r.json"], "python -m named cost r.json"),
        (["-m", "named", "--output={}/r.json", "--only", "x/y"], "python -m named --output=r.json --only x/y"),
        (["{}/cudnn-backend", "bench", "{}/logs/"], "cudnn-backend bench logs/"),
    ],
)
def test_a_record_has_its_command_and_no_folder_of_the_machine(words, command, tmp_path):
    for file in ("named.py", "cudnn-backend"):
        (tmp_path / file).write_text(PROGRAM)
    given = [word.replace("{}", str(tmp_path)) for word in words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, *given], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["command"] == command
    assert str(tmp_path) not in done.stdout

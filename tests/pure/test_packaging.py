"""Contents of the wheel and the sdist, extras, workflows and release files, without building a distribution."""

from __future__ import annotations

import fnmatch
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_backend_py

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cudnn_backend_py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
PATTERNS: list[str] = PROJECT["tool"]["setuptools"]["package-data"]["cudnn_backend_py"]


def get_project_name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_package_data_pattern_matches_files(pattern: str) -> None:
    assert list(PACKAGE.glob(pattern))


def test_every_non_python_package_file_is_package_data() -> None:
    made = (".py", ".pyc", ".so")
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in made}
    assert files == {path for pattern in PATTERNS for path in PACKAGE.glob(pattern)}


def test_every_folder_with_python_files_has_an_init_file() -> None:
    assert {path.parent for path in PACKAGE.rglob("*.py")} == {path.parent for path in PACKAGE.rglob("__init__.py")}


def test_only_the_package_is_installed() -> None:
    [pattern] = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    folders = [path.name for path in ROOT.iterdir() if path.is_dir()]
    assert [name for name in fnmatch.filter(folders, pattern) if not name.endswith(".egg-info")] == [PACKAGE.name]


def run_setup(monkeypatch: pytest.MonkeyPatch, *, root: Path = ROOT, **environment: str) -> dict[str, Any]:
    """Run setup.py of the checkout, or of a copy, and return the arguments that it passes to setuptools."""
    seen: dict[str, Any] = {}
    for name in ("GITHUB_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_REF_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    recorder = SimpleNamespace(
        Extension=lambda name, **rest: SimpleNamespace(name=name, **rest), setup=lambda **rest: seen.update(rest)
    )
    monkeypatch.setitem(sys.modules, "setuptools", recorder)
    for name in ("build_ext", "bdist_wheel"):
        command = SimpleNamespace(**{name: type(name, (), {"get_tag": lambda _: ("cp311", "cp311", "linux_x86_64")})})
        monkeypatch.setitem(sys.modules, f"setuptools.command.{name}", command)
    runpy.run_path(str(root / "setup.py"))
    return seen


def test_c_extensions_are_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = run_setup(monkeypatch)
    assert seen["cmdclass"]["bdist_wheel"]().get_tag() == ("py3", "none", "linux_x86_64")
    assert seen["cmdclass"]["build_ext"]().get_ext_filename("a.b._c") == "a/b/_c.so"
    made = {item.name.rpartition(".")[2]: item for item in seen["ext_modules"]}
    assert set(made) == {"_driver_stub", "_fast_call"}
    assert "-Wl,-soname,libcuda.so.1" in made["_driver_stub"].extra_link_args
    for item in made.values():
        assert item.optional is True
        assert all((ROOT / source).is_file() for source in item.sources)


def test_base_dependencies_contain_no_nvidia_package() -> None:
    assert {get_project_name(item) for item in PROJECT["project"]["dependencies"]} == {
        "jinja2",
        "numpy",
        "click",
        "rich",
        "packaging",
        "tomlkit",
    }


@pytest.mark.parametrize(("extra", "major"), [("cu12", 12), ("cu13", 13), ("jit-cu12", 12), ("jit-cu13", 13)])
def test_cudnn_extra_has_one_cudnn_and_the_nvrtc_of_its_cuda_major(extra: str, major: int) -> None:
    names = [get_project_name(item) for item in EXTRAS[extra]]
    jit = "jit-" if extra.startswith("jit-") else ""
    assert [name for name in names if "cudnn" in name] == [f"nvidia-cudnn-{jit}cu{major}"]
    nvrtc = {12: "nvidia-cuda-nvrtc-cu12", 13: "nvidia-cuda-nvrtc"}[major]
    assert [name for name in names if "nvrtc" in name] == [nvrtc]


def test_test_and_dev_extras_install_no_cudnn() -> None:
    assert not [item for extra in ("test", "dev") for item in EXTRAS[extra] if "nvidia" in item]


def test_package_version_is_defined_in_one_file() -> None:
    attribute = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert "version" in PROJECT["project"]["dynamic"]
    said = {
        path.relative_to(PACKAGE).as_posix(): found
        for path in PACKAGE.rglob("*.py")
        if (found := re.findall(r'^__version__ = "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE))
    }
    assert said == {"system/version.py": [cudnn_backend_py.__version__]}
    assert attribute == "cudnn_backend_py.system.version.__version__"


def test_ci_tests_the_python_versions_of_the_classifiers() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    tested = set(re.findall(r'"(3\.\d+)"', text))
    known = {item.rpartition(" ")[2] for item in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", item)}
    assert tested == known


def test_readme_links_are_absolute_in_the_package_description(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run_setup(monkeypatch, GITHUB_REPOSITORY="someone/something", GITHUB_REF_NAME="v1.2.3")
    base = "https://github.com/someone/something"
    page = said["long_description"]
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 15
    assert all(link.startswith("https://") for link in links)
    assert f"[Install]({base}/blob/v1.2.3/docs/how-to/install.md)" in page
    assert f"]({base}/raw/v1.2.3/docs/assets/forum.svg)" in page
    assert said["project_urls"]["Source"] == base
    assert said["author_email"] == "someone@users.noreply.github.com"


def test_project_urls_of_an_sdist_come_from_pkg_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("setup.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    said = run_setup(monkeypatch, root=tmp_path)
    assert said["long_description"] == (ROOT / "README.md").read_text(encoding="utf-8")
    assert (said["project_urls"], said["author_email"]) == ({}, None)
    (tmp_path / "PKG-INFO").write_text("Name: x\nProject-URL: Source, https://forge.example/a/b\n")
    said = run_setup(monkeypatch, root=tmp_path)
    assert said["project_urls"]["Source"] == "https://forge.example/a/b"


def test_sdist_manifest_covers_every_tracked_folder() -> None:
    taken = set(re.findall(r"^recursive-include (\S+)", (said := (ROOT / "MANIFEST.in").read_text()), re.MULTILINE))
    taken |= {name for line in re.findall(r"^include (.+)", said, re.MULTILINE) for name in line.split()}
    taken |= {PACKAGE.name, "pyproject.toml", "setup.py", "MANIFEST.in"}  # setuptools adds these
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert {line.partition("/")[0] for line in listed.splitlines()} - taken == {".gitignore"}
    assert all((ROOT / name).exists() for name in taken)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_hash(path: Path) -> None:
    used = re.findall(r"uses: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+(\.\d+)+", line)] == []


def test_every_workflow_pins_an_action_to_the_same_hash() -> None:
    used = {
        line
        for path in WORKFLOWS
        for line in re.findall(r"uses: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len({line.partition("@")[0] for line in used}) == len(used)


def test_release_workflow_uses_no_secret() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "id-token: write" in release
    assert "attestations: write" in release
    assert "secrets." not in release


CHANGES = (
    "# Changelog\n\n## Unreleased\n\n* new\n\n## 1.2.3 (2026-01-31)\n\n* one\n* two\n\n## 1.2.2 (2026-01-01)\n\n* old\n"
)


def test_release_notes_are_the_changelog_section_of_the_tag() -> None:
    notes = runpy.run_path(str(ROOT / ".ci" / "release_notes.py"))["release_notes"]
    assert notes("v1.2.3", '__version__ = "1.2.3"\n', CHANGES) == "* one\n* two"
    for tag, version in (("v1.2.4", "1.2.3"), ("1.2.3", "1.2.3"), ("v1.3.0", "1.3.0")):
        with pytest.raises(SystemExit):
            notes(tag, f'__version__ = "{version}"\n', CHANGES)


def test_changelog_headings_have_version_and_date() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert [head for head in heads[1:] if not re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", head)] == []


def test_make_help_prints_ten_lines() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 10
    assert "demo " in done.stdout


def test_issue_forms_and_community_files_exist() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [path.stem for path in forms] == [
        "bug",
        "config",
        "hardware-evidence",
        "known-issue",
        "question",
        "wrong-verdict",
    ]
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "CONTRIBUTING.md", ".pre-commit-config.yaml"):
        assert (ROOT / name).stat().st_size > 300, name


def test_pre_commit_pins_the_linters_and_has_the_dependencies_of_the_package() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pinned = re.findall(r'"((?:ruff|mypy)==[^"]+)"', text)
    assert set(pinned) == {item for item in EXTRAS["dev"] if "==" in item}
    assert set(PROJECT["project"]["dependencies"]) <= set(re.findall(r'"([^"]+)"', text))

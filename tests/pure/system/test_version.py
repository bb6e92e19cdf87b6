"""cuDNN versions as tuples, text and ranges (``VersionRange``)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cudnn_backend_py.system.version import (
    Version,
    VersionRange,
    format_cuda_version_number,
    format_version_numbers,
    parse_leading_numbers,
    parse_version_numbers,
)


def test_a_version_converts_to_tuple_text_and_number() -> None:
    version = Version(9, 19, 0)
    assert str(version) == f"{version}" == format_version_numbers((9, 19, 0)) == "9.19.0"
    assert version == (9, 19, 0)
    assert version < (9, 19, 1)
    assert version > (9, 8, 99)
    assert json.dumps(version) == "[9, 19, 0]"
    assert Version.from_numbers((9, 19, 0)) == Version.from_text("9.19.0") == Version.from_number(91900) == version
    assert Version.from_numbers(version) is version
    assert version.number == 91900
    assert Version.from_number(version.number) == version


@pytest.mark.parametrize("text", ["", "9", "9.19", "9.19.0.56", "9.x.0", "nine"])
def test_version_text_without_three_numbers_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # whose words are int's or those of unpacking
        Version.from_text(text)


def test_version_of_a_wheel_has_four_numbers() -> None:
    assert parse_version_numbers("9.19.0.56") == (9, 19, 0, 56)
    assert format_version_numbers(parse_version_numbers("9.19")) == "9.19"


def test_leading_version_numbers_of_names_are_parsed() -> None:
    names = ["9.19.0.56-full", "9.28.0", "default", "/opt/9.1/libcudnn.so.9", ""]
    assert [parse_leading_numbers(name) for name in names] == [(9, 19, 0, 56), (9, 28, 0), (), (), ()]


def test_version_range_excludes_its_end_and_its_exceptions() -> None:
    window = VersionRange((9, 19, 0), (9, 25, 1), except_=((9, 24, 1),))
    assert [version in window for version in ((9, 18, 9), (9, 19, 0), (9, 24, 0), (9, 24, 1), (9, 25, 0))] == [
        False,
        True,
        True,
        False,
        True,
    ]
    assert (9, 25, 1) not in window
    assert str(window) == "cuDNN 9.19.0 to before 9.25.1"
    assert Version(9, 99, 0) in VersionRange()
    assert str(VersionRange()) == "cuDNN 9.0.0 and later"


def test_reading_the_package_version_imports_only_the_version_module() -> None:
    program = (
        "import sys, cudnn_backend_py; cudnn_backend_py.__version__;"
        "print(*sorted(name for name in sys.modules if name.startswith('cudnn_backend_py.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cudnn_backend_py.system", "cudnn_backend_py.system.version"]


def test_cuda_version_numbers_are_converted_to_text() -> None:
    assert [format_cuda_version_number(number) for number in (12090, 13010, 13000)] == ["12.9", "13.1", "13.0"]

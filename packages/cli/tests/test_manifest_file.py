"""Problems of a manifest are reported by line and column."""

from pathlib import Path

import pytest

from gpuaas_cli.main import run
from gpuaas_cli.manifest_file import read_manifest

GOOD = """\
schema: gpuaas.app/v1
slug: echo
title: Echo
version: 1.0.0
runtime: {name: echo, version: "7"}
components:
  - key: head
    title: Head
    primary: true
operations:
  - {kind: deploy, title: Deploy}
  - {kind: decommission, title: End}
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    return [str(problem).replace(str(tmp_path) + "/", "") for problem in read_manifest(path)[1]]


def test_a_good_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(tmp_path, GOOD) == []
    assert run(["app", "validate", str(tmp_path / "manifest.yaml")]) == 0
    assert "echo 1.0.0 is valid" in capsys.readouterr().err


def test_every_problem_at_once_in_the_order_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.replace("title: Echo\n", "title: Echo\ncolour: red\n").replace("version: 1.0.0", "version: 1.0")
    text = text.replace("    primary: true", "    primary: maybe\n    max: 0")
    text += "inputs:\n  type: object\n  properties:\n    a:\n      pattern: '(?=x)'\n"
    assert problems(tmp_path, text) == [
        "manifest.yaml:4:1: there is no field 'colour' here",
        "manifest.yaml:5:10: Input should be a valid string",
        "manifest.yaml:10:14: Input should be a valid boolean, unable to interpret input",
        "manifest.yaml:11:10: Input should be greater than or equal to 1",
        "manifest.yaml:19:16: not a regular expression of RE2, which takes no look-around and no back-reference: "
        "invalid perl operator: (?=",
    ]
    assert run(["app", "validate", str(tmp_path / "manifest.yaml")]) == 1
    said = capsys.readouterr()
    assert said.out.count("\n") == 5
    assert "5 problems" in said.err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "manifest.yaml:1:1: the file is empty"),
        ("a: [1, 2", "manifest.yaml:1:9: expected ',' or ']', but got '<stream end>'"),
        ("a: &x 1\nb: *x\n", "manifest.yaml:2:4: aliases (*name) are not allowed"),
        ("a: 1\na: 2\n", "manifest.yaml:2:1: duplicate key 'a': first used in line 1"),
        ("- 1\n", "manifest.yaml:1:1: Input should be a valid dictionary or instance of Manifest"),
        ("a: 1\n---\nb: 2\n", "manifest.yaml:2:1: but found another document"),
        ("a: !!python/name:os.system x\n", "manifest.yaml:1:4: could not determine a constructor"),
        ("version: 2024-01-01\n", "manifest.yaml:1:10: put 2024-01-01 in quotes: YAML reads it as a date"),
        ("a: " + "[" * 100, "manifest.yaml:1:51: nested more than 48 levels deep"),
        ("a: " + "x" * 600_000, "manifest.yaml:1:1: the file is larger than 524288 bytes"),
        ("title: \x07\n", "manifest.yaml:1:1: not YAML text"),
    ],
)
def test_files_that_are_no_manifest(tmp_path: Path, text: str, complaint: str) -> None:
    assert any(problem.startswith(complaint) for problem in problems(tmp_path, text)), problems(tmp_path, text)


def test_a_yaml_bomb_is_refused_where_it_starts_to_grow(tmp_path: Path) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    assert problems(tmp_path, bomb) == ["manifest.yaml:2:8: aliases (*name) are not allowed"]


def test_what_is_missing_is_missing_in_something(tmp_path: Path) -> None:
    text = GOOD.replace("    title: Head\n", "").replace("  - {kind: decommission, title: End}\n", "")
    assert problems(tmp_path, text) == ["manifest.yaml:7:5: 'title' is missing"]

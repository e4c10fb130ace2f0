"""The file of the first administrator: the rules of every other user, and no word of the file in a message."""

import json
from pathlib import Path

import pytest

from gpuaas_platform.serving import read_first_admin

EMAIL, PASSWORD = "root@gpuaas.example", "a password that stays"
BAD = {
    json.dumps({"email": EMAIL, "password": " " * 12}): "white space",
    json.dumps({"email": EMAIL, "password": "s3cr3t"}): "at least 12",
    json.dumps({"email": EMAIL, "password": "s" * 12}): "one character repeated",
    json.dumps({"email": "nobody", "password": "s3cr3t s3cr3t"}): "email: ",
    json.dumps({"email": EMAIL}): "not a JSON object",
    json.dumps({"email": EMAIL, "password": 123456789012}): "password: ",
    json.dumps(["s3cr3t"]): "not a JSON object",
    "my-s3cr3t-password": "not a JSON object",
    "": "not a JSON object",
}


@pytest.mark.parametrize("content", BAD)
def test_what_breaks_the_rules_ends_the_program_in_words(tmp_path: Path, content: str) -> None:
    file = tmp_path / "admin.json"
    file.write_text(content)
    with pytest.raises(SystemExit, match=BAD[content]) as refused:
        read_first_admin(file)
    assert str(file) in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


def test_what_keeps_them_is_read_whatever_else_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "admin.json"
    file.write_text(json.dumps({"email": EMAIL, "password": PASSWORD, "note": "for us"}))
    found = read_first_admin(file)
    assert (found.email, found.password.get_secret_value()) == (EMAIL, PASSWORD)

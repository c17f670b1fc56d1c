"""Passwords in files: whatever the file is, reading it ends, and tells nothing of its contents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zhcedge.app.passwords import read_password
from zhcedge.core.errors import ConfigError

KEY = "mqtt.password_file"


@pytest.mark.parametrize("text", ["s3cret", "s3cret\n", "s3cret\r\nnot this\n"])
def test_the_first_line_is_the_password(tmp_path: Path, text: str) -> None:
    file = tmp_path / "p"
    file.write_text(text)
    assert read_password(file, KEY) == "s3cret"
    assert read_password(None, KEY) == ""


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, Path("/dev/zero"), folder):
        with pytest.raises(ConfigError, match="not a regular file") as caught:
            read_password(path, KEY)
        assert caught.value.fix == f"correct {KEY}"


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"x" * 65_537, "larger than 65536"), (b"x" * 65_536, "longer than 65535"), (b"s3cret\xff\n", "not UTF-8")],
    ids=["large", "long", "no text"],
)
def test_what_can_be_no_password_is_refused_without_showing_it(tmp_path: Path, data: bytes, words: str) -> None:
    file = tmp_path / "p"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=words) as caught:
        read_password(file, KEY)
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_password(tmp_path / "absent", KEY)

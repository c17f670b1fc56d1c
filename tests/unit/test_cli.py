"""What every command shares: exit codes, one-line errors, quick help."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from zhcedge import cli
from zhcedge.core import errors


def run(*words: str, check: str = "", stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """`zhc-edge WORDS` in a process of its own; `check` is code that runs after it, in the same process."""
    code = f"""
import sys
from zhcedge.cli import main
try:
    code = main({list(words)!r})
except SystemExit as exit:
    code = exit.code
{check}
sys.exit(code)
"""
    return subprocess.run([sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Failing]:
    """`version` is replaced by a command that raises whatever Failing.error holds."""
    module = ModuleType("failing")
    module.add_parser = Failing.add_parser  # type: ignore[attr-defined]
    monkeypatch.setattr("importlib.import_module", lambda name: module)
    return Failing


class Failing:
    error: BaseException = RuntimeError()

    @staticmethod
    def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        def fail(arguments: argparse.Namespace) -> int:
            raise Failing.error

        subparsers.add_parser("version").set_defaults(run=fail)


def all_errors(root: type[errors.ZhcEdgeError]) -> Iterator[type[errors.ZhcEdgeError]]:
    yield root
    for child in root.__subclasses__():
        yield from all_errors(child)


@pytest.mark.parametrize("error", [one for one in all_errors(errors.ZhcEdgeError) if one.__module__ == errors.__name__])
def test_an_error_is_one_line_and_its_exit_code(
    failing: type[Failing], capsys: pytest.CaptureFixture[str], error: type[errors.ZhcEdgeError]
) -> None:
    failing.error = error("the clip is empty", where="a.mp4", fix="copy it again")
    assert cli.main(["version"]) == error.exit_code
    assert capsys.readouterr() == ("", "zhc-edge: a.mp4: the clip is empty; copy it again\n")


@pytest.mark.parametrize("words", [["--debug", "version"], ["version", "--debug"]])
def test_debug_shows_the_traceback(
    failing: type[Failing], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    failing.error = errors.MediaError("the clip is empty")
    assert cli.main(words) == errors.MediaError.exit_code
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_does_not_look_like_a_verdict(failing: type[Failing], capsys: pytest.CaptureFixture[str]) -> None:
    failing.error = ZeroDivisionError("division by zero")
    assert cli.main(["version"]) == 70
    assert "this is a bug" in capsys.readouterr().err


def test_ctrl_c_is_130_and_quiet(failing: type[Failing], capsys: pytest.CaptureFixture[str]) -> None:
    failing.error = KeyboardInterrupt()
    assert cli.main(["version"]) == 130
    assert capsys.readouterr() == ("", "")


def test_help_lists_every_exit_code() -> None:
    documented = {int(line.split()[0]) for line in cli.EXIT_CODES.splitlines()[1:] if line.split()[0].isdigit()}
    assert {error.exit_code for error in all_errors(errors.ZhcEdgeError)} | {0, 3, 130} == documented


@pytest.mark.parametrize("words", [("--help",), ("version",)])
def test_help_and_version_load_nothing_heavy(words: tuple[str, ...]) -> None:
    done = run(*words, check="print(sorted({'numpy', 'pydantic', 'yaml', 'paho'} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: zhc-edge {name}")


@pytest.mark.parametrize("words", [(), ("nonsense",), ("version", "surplus")])
def test_a_wrong_command_line_is_exit_2(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "usage: zhc-edge" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run("version", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")

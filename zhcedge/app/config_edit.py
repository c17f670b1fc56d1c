"""Use cases `config edit`, `set`, `unset`, `revert`, `diff`: a configuration is changed as `visudo` changes its file.

Nothing that has errors is ever installed; what a running daemon does not take is taken out again.
"""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from zhcedge.app.check import check, load_configuration
from zhcedge.app.config_versions import ConfigVersions
from zhcedge.app.control_address import find_control_socket
from zhcedge.app.reload_request import reload
from zhcedge.config.diff import changes
from zhcedge.config.files import drop_in_with
from zhcedge.config.schema import Config
from zhcedge.config.splice import with_value, without_value
from zhcedge.config.tree import parse_value
from zhcedge.core.errors import ConfigError, DaemonAwayError, SourceMissingError, UsageError, ZhcEdgeError
from zhcedge.core.printing import printable

_LINE_END = "\n"
_EDITORS = ("SUDO_EDITOR", "VISUAL", "EDITOR")


class Person(Protocol):
    """Who is asked."""

    def choose(self, question: str, answers: str) -> str:
        """One of the letters of `answers`; the first one is for who just presses Enter."""
        ...


def edit(path: Path, environ: Mapping[str, str], person: Person, out: TextIO) -> int:
    """Let somebody edit the file until it is right or given up, then install it and let a daemon take it.

    Returns 0 when it is in force, installed without a daemon, or given up; 1 when the daemon has taken it back. Raises
    NotNowError while somebody else edits, SourceMissingError, OutputError, UsageError without an editor.
    """
    command = _editor(environ)
    with ConfigVersions(path) as versions:
        before = versions.read()
        with versions.draft(before) as draft:
            while True:
                _run(command, draft)
                data = draft.read_bytes()
                if data == before:
                    out.write("nothing was changed\n")
                    return 0
                problems = _problems(draft, path, environ)
                if not problems:
                    break
                out.write(problems + "\n")
                if person.choose("(e)dit again, or e(x)it without a change?", "ex") == "x":
                    return 0
            _show_changes(path, draft, environ, out)
        if person.choose("install it? (y)es, (n)o", "yn") == "n":
            return 0
        return _install(versions, data, environ, out)


def set_value(path: Path, assignment: str, environ: Mapping[str, str], person: Person, out: TextIO) -> int:
    """Change or add one value in place, given as for --set; all else in the file stays, byte for byte.

    Returns as `edit`. Raises UsageError where that can't be done, or a drop-in has the last word on that value;
    ConfigError with every problem when the configuration would have errors; and as `edit`.
    """
    key, equals, written = assignment.partition("=")
    if not equals:
        raise UsageError("this is not KEY=VALUE", where=key, fix="write it like mqtt.port=1884")
    value = parse_value(written, f"the value of {key}")
    if value.problems:
        raise UsageError(value.problems[0].what, where=key, fix="put text with special signs in quotes")
    return _change(path, key, lambda text, segments: with_value(text, segments, value.data), environ, person, out)


def unset_value(path: Path, key: str, environ: Mapping[str, str], person: Person, out: TextIO) -> int:
    """Take one key out of the file, so that its default holds. Returns and raises as `set_value`."""
    return _change(path, key, without_value, environ, person, out)


def _change(
    path: Path,
    key: str,
    change: Callable[[str, Sequence[str]], str],
    environ: Mapping[str, str],
    person: Person,
    out: TextIO,
) -> int:
    segments = tuple(key.strip().split("."))
    if not all(segments):
        raise UsageError("this is no key", where=key, fix="write it like mqtt.port")
    with ConfigVersions(path) as versions:
        before = versions.read()
        try:
            text = before.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError("the file is not UTF-8", where=str(path)) from error
        if (winner := drop_in_with(path, segments)) is not None:
            raise UsageError(f"{winner} has the last word on this", where=key, fix="change it there")
        data = before[: len(before) - len(text.encode())] + change(text, segments).encode()
        if data == before:
            out.write("nothing was changed\n")
            return 0
        with versions.draft(data) as draft:
            problems = _problems(draft, path, environ)
            if problems:
                raise ConfigError(f"nothing was changed, because then there would be errors:\n{problems}")
            _show_changes(path, draft, environ, out)
        if person.choose("install it? (y)es, (n)o", "yn") == "n":
            return 0
        return _install(versions, data, environ, out)


def revert(path: Path, environ: Mapping[str, str], person: Person, out: TextIO) -> int:
    """Bring the version back that was replaced last; a second call brings back what this one replaced.

    Returns as `edit`. Raises ConfigError with every problem when that version has errors by now, SourceMissingError
    when there is none, and as `edit`.
    """
    with ConfigVersions(path) as versions:
        kept = versions.versions()
        if not kept:
            raise SourceMissingError("there is no former version", where=str(path))
        data = kept[-1].read_bytes()
        with versions.draft(data) as draft:
            problems = _problems(draft, path, environ)
            if problems:
                raise ConfigError(f"the former version {kept[-1].name} has errors:\n{problems}")
            _show_changes(path, draft, environ, out)
        if person.choose(f"bring {kept[-1].name} back? (y)es, (n)o", "yn") == "n":
            return 0
        return _install(versions, data, environ, out)


def show_diff(path: Path, other: Path, environ: Mapping[str, str], out: TextIO) -> int:
    """What differs from `path` to `other`, and what each change costs. 0 without a difference, 1 with some.

    Raises ConfigError for a file with errors.
    """
    found = changes(*(load_configuration(file, (), environ).config for file in (path, other)))
    for change in found:
        out.write(printable(str(change)) + "\n")
    return 1 if found else 0


def schema() -> str:
    """The JSON Schema of a configuration, for editors."""
    return json.dumps(Config.model_json_schema(), indent=2)


def _editor(environ: Mapping[str, str]) -> list[str]:
    for name in _EDITORS:
        if environ.get(name):
            return shlex.split(environ[name])
    for name in ("sensible-editor", "nano", "vi"):
        if any((Path(folder) / name).exists() for folder in environ.get("PATH", "").split(":") if folder):
            return [name]
    raise UsageError("there is no editor", fix="name one: EDITOR=nano zhc-edge config edit")


def _run(command: list[str], draft: Path) -> None:
    try:
        status = subprocess.run([*command, str(draft)], check=False).returncode
    except OSError as error:
        raise UsageError(f"the editor can't be started: {error.strerror}", where=command[0]) from error
    if status != 0:
        raise UsageError(f"the editor ended with {status}; nothing was changed", where=command[0])


def _problems(draft: Path, path: Path, environ: Mapping[str, str]) -> str:
    report = check(draft, (), environ)
    if not report.problems:
        return ""
    return printable(str(report.error()), keep=_LINE_END).replace(str(draft), str(path))


def _show_changes(path: Path, draft: Path, environ: Mapping[str, str], out: TextIO) -> None:
    try:
        old: Config | None = load_configuration(path, (), environ).config
    except ConfigError:
        old = None
    if old is None:
        out.write("the file that is there now has errors\n")
        return
    found = changes(old, load_configuration(draft, (), environ).config)
    out.writelines(f"  {printable(str(change))}\n" for change in found)
    if not found:
        out.write("no value differs\n")


def _install(versions: ConfigVersions, data: bytes, environ: Mapping[str, str], out: TextIO) -> int:
    before, former = versions.read(), _socket(versions.path, environ)
    versions.install(data)

    def find() -> Path:
        return find_control_socket(None, versions.path, (), environ)

    try:
        said = io.StringIO()
        status = reload(former or find(), said, is_waiting=True, as_json=False, new_socket=find)
    except DaemonAwayError as error:
        out.write(f"installed; {printable(error.what)}, so it is taken at the next start\n")
        return 0
    except ZhcEdgeError as error:
        versions.install(before)
        out.write(f"{printable(str(error), keep=_LINE_END)}\nthe daemon did not take it: the former file is back\n")
        return 1
    out.write(said.getvalue())
    if status:
        versions.install(before)
        out.write("the former file is back\n")
    return status


def _socket(path: Path, environ: Mapping[str, str]) -> Path | None:
    """Where a daemon listens that runs with what is there now, which the new configuration may change; None where that
    has errors."""
    try:
        return find_control_socket(None, path, (), environ)
    except ZhcEdgeError:
        return None


class Terminal:
    """Implements Person."""

    def __init__(self, ask: Callable[[str], str] = input) -> None:
        self._ask = ask

    def choose(self, question: str, answers: str) -> str:
        """See Person. The end of the input is the last, safe answer."""
        while True:
            try:
                answer = self._ask(f"{question} ").strip().lower()[:1]
            except EOFError:
                return answers[-1]
            if not answer:
                return answers[0]
            if answer in answers:
                return answer


class Yes:
    """Implements Person: takes what has no errors, and gives up what has."""

    def choose(self, question: str, answers: str) -> str:
        """See Person."""
        return answers[0] if answers == "yn" else answers[-1]

"""A configuration is edited as by visudo: what has errors is never installed, what was there can come back."""

from __future__ import annotations

import concurrent.futures
import io
import json
import socket
import stat
import sys
from pathlib import Path

import pytest

from zhcedge.app.config_edit import Terminal, Yes, edit, revert, schema, set_value, show_diff, unset_value
from zhcedge.app.config_versions import KEPT, ConfigVersions
from zhcedge.core.errors import ConfigError, NotNowError, SourceMissingError, UsageError
from zhcedge.service.socket_file import SocketFile

GOOD = "# mine\nchannels:\n  gate: {source: {uri: 'pattern:boxes'}}  # the gate\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(GOOD)
    file.chmod(0o640)
    return file


def editor(tmp_path: Path, *texts: str) -> dict[str, str]:
    """An environment whose editor writes these texts, one a call; an empty one leaves the file as it is."""
    script = tmp_path / "editor.py"
    for number, text in enumerate(texts):
        (tmp_path / f"text-{number}").write_text(text)
    script.write_text(
        "import pathlib, sys\n"
        f"home = pathlib.Path({str(tmp_path)!r})\n"
        "texts = sorted(home.glob('text-*'))\n"
        "text = texts[0].read_text(); texts[0].unlink()\n"
        "if text: pathlib.Path(sys.argv[1]).write_text(text)\n"
    )
    return {"EDITOR": f"{sys.executable} {script}", "RUNTIME_DIRECTORY": str(tmp_path), "PATH": "/usr/bin:/bin"}


def left(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir() if "draft" in file.name}


def test_a_good_edit_is_installed_with_its_comments_owner_and_mode(path: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    other = GOOD.replace("boxes'}", "boxes', fps: 5.0}")
    assert edit(path, editor(tmp_path, other), Yes(), out) == 0
    assert path.read_text() == other
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert "channels.gate.source.fps: null -> 5.0 (camera)" in out.getvalue()
    assert "next start" in out.getvalue()
    assert left(path) == set()


def test_errors_are_listed_with_their_places_and_never_installed(path: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    assert edit(path, editor(tmp_path, GOOD + "nonsense: 1\n"), Yes(), out) == 0
    assert path.read_text() == GOOD
    assert f"{path}:4:1" in out.getvalue()
    answers = iter(["e", "", ""])  # again; then Enter for yes
    better = GOOD + "device: box-2\n"
    person = Terminal(lambda question: next(answers))
    assert edit(path, editor(tmp_path, GOOD + "nonsense: 1\n", better), person, out) == 0
    assert path.read_text() == better


def test_no_change_and_no_answer_install_nothing(path: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    assert edit(path, editor(tmp_path, ""), Yes(), out) == 0
    assert "nothing was changed" in out.getvalue()

    def silent(question: str) -> str:
        raise EOFError

    assert edit(path, editor(tmp_path, GOOD + "device: box-3\n"), Terminal(silent), out) == 0
    assert path.read_text() == GOOD


def test_revert_goes_back_and_forth(path: Path, tmp_path: Path) -> None:
    other = GOOD + "device: box-4\n"
    environ = editor(tmp_path, other)
    with pytest.raises(SourceMissingError):
        revert(path, environ, Yes(), io.StringIO())
    edit(path, environ, Yes(), io.StringIO())
    for wanted in (GOOD, other, GOOD):
        revert(path, environ, Yes(), io.StringIO())
        assert path.read_text() == wanted


def test_a_former_version_with_errors_stays_where_it_is(path: Path, tmp_path: Path) -> None:
    with ConfigVersions(path) as versions:
        path.write_text("channels: {}\n")
        versions.install(GOOD.encode())
    with pytest.raises(ConfigError, match="has errors"):
        revert(path, editor(tmp_path), Yes(), io.StringIO())
    assert path.read_text() == GOOD


def test_versions_are_for_their_owner_and_never_too_many(path: Path) -> None:
    with ConfigVersions(path) as versions:
        for number in range(KEPT + 5):
            versions.install(f"{GOOD}device: box-{number}\n".encode())
        kept = versions.versions()
    assert len(kept) == KEPT
    assert kept[-1].read_text() == f"{GOOD}device: box-{KEPT + 3}\n"
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in kept)
    assert stat.S_IMODE(kept[0].parent.stat().st_mode) == 0o700


def test_two_do_not_edit_at_once(path: Path, tmp_path: Path) -> None:
    with ConfigVersions(path), pytest.raises(NotNowError):
        edit(path, editor(tmp_path, GOOD), Yes(), io.StringIO())


def test_a_daemon_whose_socket_lies_beside_the_file_can_be_built_anew_meanwhile(path: Path) -> None:
    with ConfigVersions(path):
        SocketFile(path.parent / "control.sock").close()


@pytest.mark.parametrize("command", ["/nonexistent/editor", "false"])
def test_an_editor_that_fails_changes_nothing(path: Path, command: str) -> None:
    with pytest.raises(UsageError):
        edit(path, {"EDITOR": command, "PATH": "/usr/bin:/bin"}, Yes(), io.StringIO())
    assert path.read_text() == GOOD
    assert left(path) == set()


def test_diff_says_what_each_change_costs(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(GOOD + "pipeline: {lanes: 2}\n")
    out = io.StringIO()
    assert show_diff(path, other, {}, out) == 1
    assert out.getvalue() == "pipeline.lanes: 0 -> 2 (restart)\n"
    assert show_diff(path, path, {}, out) == 0


def test_set_changes_one_value_and_leaves_the_rest(path: Path, tmp_path: Path) -> None:
    out, environ = io.StringIO(), editor(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert set_value(path, "channels.gate.source.fps=5.0", environ, Yes(), out) == 0
    assert path.read_bytes() == b"\xef\xbb\xbf" + GOOD.replace("boxes'}", "boxes', fps: 5.0}").encode()
    assert "channels.gate.source.fps: null -> 5.0 (camera)" in out.getvalue()
    assert unset_value(path, "channels.gate.source.fps", environ, Yes(), out) == 0
    assert path.read_bytes() == b"\xef\xbb\xbf" + GOOD.encode()
    assert len(ConfigVersions(path).versions()) == 2
    assert left(path) == set()


@pytest.mark.parametrize(
    ("assignment", "error", "words"),
    [
        ("mqtt.port=nonsense", ConfigError, r"config\.yaml:5:9"),
        ("nonsense=1", ConfigError, "unknown key"),
        ("mqtt.port", UsageError, "KEY=VALUE"),
        ("mqtt..port=1", UsageError, "no key"),
        ("mqtt.host=[1", UsageError, "expected"),
        ("channels.gate.source.uri.x=1", UsageError, "no place"),
    ],
)
def test_set_installs_nothing_that_is_wrong(
    path: Path, tmp_path: Path, assignment: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        set_value(path, assignment, editor(tmp_path), Yes(), io.StringIO())
    assert path.read_text() == GOOD
    assert left(path) == set()


def test_set_does_not_write_what_a_drop_in_overrules(path: Path, tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/a.yaml").write_text("mqtt: {port: 2000}\n")
    with pytest.raises(UsageError, match=r"conf\.d/a\.yaml has the last word"):
        set_value(path, "mqtt.port=3000", editor(tmp_path), Yes(), io.StringIO())
    assert set_value(path, "mqtt.host=broker", editor(tmp_path), Yes(), io.StringIO()) == 0


def answer(listening: socket.socket, facts: dict[str, object]) -> dict[str, object]:
    """Answer one request; the request."""
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as lines:
        asked: dict[str, object] = json.loads(lines.readline())
        connection.sendall(json.dumps(facts).encode() + b"\n")
    return asked


def listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    made.bind(str(path))
    made.listen()
    return made


def test_a_daemon_is_asked_where_it_listens_and_then_where_the_new_file_has_it(path: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old.sock", tmp_path / "new.sock"
    path.write_text(f"{GOOD}control: {{socket: {old}}}\n")
    facts = {"number": 1, "state": "applied", "error": None, "changes": [], "text": "it is in force"}

    def move(first: socket.socket) -> None:
        with first:
            assert answer(first, {"number": 1, "state": "checking"})["do"] == "reload"
        with listening(new) as second:
            assert answer(second, facts)["do"] == "reload-status"

    out = io.StringIO()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        moving = pool.submit(move, listening(old))
        assert set_value(path, f"control.socket={new}", {}, Yes(), out) == 0
        moving.result()
    assert "it is in force" in out.getvalue()


def test_a_daemon_that_refuses_what_moves_its_socket_keeps_the_former_file(path: Path, tmp_path: Path) -> None:
    path.write_text(f"{GOOD}control: {{socket: {tmp_path}/old.sock}}\n")
    before, out = path.read_bytes(), io.StringIO()
    error = {"what": "not that", "where": "", "fix": "", "code": 78}
    with listening(tmp_path / "old.sock") as daemon, concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(answer, daemon, {"error": error})
        assert set_value(path, f"control.socket={tmp_path}/new.sock", {}, Yes(), out) == 1
    assert path.read_bytes() == before
    assert "the former file is back" in out.getvalue()


def test_the_schema_for_editors_is_that_of_this_version() -> None:
    shipped = Path(__file__).parents[2] / "config/zhc-edge.schema.json"
    assert shipped.read_text() == schema() + "\n", "write it anew: zhc-edge config schema > config/zhc-edge.schema.json"

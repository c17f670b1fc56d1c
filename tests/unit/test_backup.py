"""A backup holds what makes a box; a restore is whole or nothing, and takes nothing from a stranger's archive."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import socket
import stat
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.app import factory_reset
from zhcedge.app.appliance_files import ApplianceFiles
from zhcedge.app.backup import back_up
from zhcedge.app.factory_reset import reset, what_goes
from zhcedge.app.frame_commands import error_facts
from zhcedge.app.restore import PENDING, finish_restore, read_archive, restore
from zhcedge.cli import main
from zhcedge.config.files import drop_ins
from zhcedge.core.errors import (
    ConfigError,
    DaemonAwayError,
    NotNowError,
    OutputError,
    SourceMissingError,
    ZhcEdgeError,
)
from zhcedge.store.identity import machine_mark, read_identity, settle_identity

GOOD = "# mine\ndevice: one\nchannels: {gate: {source: {uri: 'pattern:boxes'}}}\n"
SERVICE = 65534  # a user and a group that own nothing
ENVIRON = {"RUNTIME_DIRECTORY": "/nonexistent"}


def box(folder: Path, text: str = GOOD) -> ApplianceFiles:
    files = ApplianceFiles(folder / "etc" / "config.yaml", folder / "state")
    for path, data in {
        files.config: text,
        files.config.parent / "conf.d/10-a.yaml": "mqtt: {port: 2000}\n",
        files.config.parent / "credentials/mqtt": "sesame\n",
        files.config.parent / ".history/20260101T000000.0-root.yaml": GOOD,
        files.state / "models/mine/model.onnx": "a model",
        files.state / "outbox.db": "messages",
        files.state / "media/clips/gate/1.mp4": "a clip",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data)
    settle_identity(files.state, "m", 5.0)
    return files


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def archive(members: Mapping[str, bytes], hashes: Mapping[str, str] | None = None, **more: object) -> bytes:
    if hashes is None:
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    manifest = {"format": 1, "version": "0", "created": 0.0, "sha256": hashes, **more}
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, data in {"manifest.json": json.dumps(manifest).encode(), **members}.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), 1)


def test_another_box_becomes_this_one(tmp_path: Path) -> None:
    one, two = box(tmp_path / "1"), box(tmp_path / "2", GOOD.replace("one", "two"))
    (two.config.parent / "conf.d/99-own.yaml").write_text("mqtt: {port: 3000}\n")
    file = tmp_path / "b.tar.gz"
    names = back_up(file, one, with_secrets=False)
    assert "state/identity.json" in names
    assert not any("credentials" in name or "outbox" in name or "media" in name for name in names)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    own = read_identity(two.state)
    restore(file, two, ENVIRON, takes_identity=False)
    assert two.config.read_text() == GOOD
    assert [path.name for path in drop_ins(two.config)] == ["10-a.yaml"]  # its own one is put aside
    assert read_identity(two.state) == own
    assert (two.state / "models/mine/model.onnx").read_text() == "a model"
    assert not (two.state / PENDING).exists()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".restored-")]
    restore(file, two, ENVIRON, takes_identity=True)
    taken, first = read_identity(two.state), read_identity(one.state)
    assert taken is not None
    assert first is not None
    assert (taken.id, taken.machine) == (first.id, machine_mark())


def test_secrets_come_along_when_they_are_wanted(tmp_path: Path) -> None:
    one = box(tmp_path / "1")
    names = back_up(tmp_path / "b.tar.gz", one, with_secrets=True)
    assert "config/credentials/mqtt" in names
    (one.config.parent / "credentials/mqtt").write_text("other")
    restore(tmp_path / "b.tar.gz", one, ENVIRON, takes_identity=False)
    assert (one.config.parent / "credentials/mqtt").read_text() == "sesame\n"
    assert stat.S_IMODE((one.config.parent / "credentials/mqtt").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("members", "more"),
    [
        ({"../evil": b"x"}, {}),
        ({"/etc/passwd": b"x"}, {}),
        ({"config/../../evil": b"x"}, {}),
        ({"config/other.yaml": b"x"}, {}),
        ({"config/conf.d": b"x"}, {}),
        ({"state/models": b"x"}, {}),
        ({"state/models/a": b"x", "state/models/a/b": b"x"}, {}),
        ({"config/config.yaml": GOOD.encode(), "config//config.yaml": GOOD.encode()}, {}),
        ({"state/models/" + 120 * "x" + "\0x": b"x"}, {}),
        ({"state/identity.json": b"[" * 4_000}, {}),
        ({"state/outbox.db": b"x"}, {}),
        ({"config/config.yaml": b"nonsense: 1\n"}, {}),
        ({"config/config.yaml": GOOD.encode(), "config/conf.d/a.yaml": b"mqtt: {port: x}\n"}, {}),
        ({"config/config.yaml": GOOD.encode()}, {"format": 2}),
        ({"config/config.yaml": GOOD.encode()}, {"hashes": {"config/config.yaml": "0"}}),
        ({"config/config.yaml": GOOD.encode()}, {"hashes": {}}),
    ],
)
def test_a_strange_archive_changes_nothing(tmp_path: Path, members: dict[str, bytes], more: dict[str, object]) -> None:
    files, file = box(tmp_path / "1"), tmp_path / "b.tar.gz"
    file.write_bytes(archive(members, **more))  # type: ignore[arg-type]
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match="no backup"):
        restore(file, files, ENVIRON, takes_identity=True)
    assert everything(tmp_path) == before


def test_links_and_devices_are_no_members(tmp_path: Path) -> None:
    files, file = box(tmp_path / "1"), tmp_path / "b.tar.gz"
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            about = tarfile.TarInfo("config/config.yaml")
            about.type, about.linkname = kind, "/etc/passwd"
            tar.addfile(about)
        file.write_bytes(gzip.compress(plain.getvalue()))
        with pytest.raises(ConfigError, match="no plain file"):
            read_archive(file, files)


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 10_000))
def test_any_bytes_are_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, is_packed: bool, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("x")
    files, file = ApplianceFiles(folder / "config.yaml", folder), folder / "b.tar.gz"
    whole = archive({"config/config.yaml": GOOD.encode()})
    for text in (data, gzip.compress(data) if is_packed else whole[: cut % len(whole)]):
        file.write_bytes(text)
        with pytest.raises(ZhcEdgeError):
            read_archive(file, files)


def test_a_missing_archive_and_an_empty_box_are_told(tmp_path: Path) -> None:
    files = ApplianceFiles(tmp_path / "config.yaml", tmp_path / "state")
    with pytest.raises(SourceMissingError, match="nothing to keep"):
        back_up(tmp_path / "b.tar.gz", files, with_secrets=True)
    with pytest.raises(SourceMissingError, match="can't be read"):
        restore(tmp_path / "b.tar.gz", files, ENVIRON, takes_identity=False)


def test_renames_that_a_power_cut_has_left_are_done_by_the_next_one(tmp_path: Path) -> None:
    files = box(tmp_path / "1")
    new = files.config.with_name(".restored-config.yaml")
    new.write_text("other")
    done = files.config.with_name(".restored-gone")
    renames = {str(new): str(files.config), str(done): str(done.with_name("gone"))}
    (files.state / PENDING).write_text(json.dumps(renames))
    assert finish_restore(files)
    assert files.config.read_text() == "other"
    assert not finish_restore(files)


def test_renames_that_no_restore_makes_are_not_followed(tmp_path: Path) -> None:
    files = box(tmp_path / "1")
    mine, elsewhere = files.state / ".restored-job", tmp_path / "cron.d"
    elsewhere.mkdir()
    for old, new in (
        (mine, elsewhere / "job"),
        (mine, files.config.parent / "job"),  # the daemon could give itself another configuration
        (mine, files.state / "other"),
        (mine, files.state / ".." / ".." / "cron.d" / "job"),
        (elsewhere / ".restored-job", elsewhere / "job"),
    ):
        for path in (mine, elsewhere / ".restored-job"):
            path.write_text("x")
        (files.state / PENDING).write_text(json.dumps({str(old): str(new)}))
        with pytest.raises(OutputError, match="other files"):
            finish_restore(files)
        assert not new.exists(), new
    for text in ('{"a": 1}', '{"a\\u0000": "b"}', '{"": ""}'):
        (files.state / PENDING).write_text(text)
        with pytest.raises(OutputError, match="other files"):
            finish_restore(files)
    for text in ("[1]", "3", "[" * 9_000):
        (files.state / PENDING).write_text(text)
        assert not finish_restore(files)


def test_a_name_that_no_disk_takes_is_told(tmp_path: Path) -> None:
    files, file = box(tmp_path / "1"), tmp_path / "b.tar.gz"
    for name in ("config/conf.d/" + 300 * "x" + ".yaml", "state/models/" + 300 * "x"):
        file.write_bytes(archive({"config/config.yaml": GOOD.encode(), name: b"{}"}))
        before = everything(tmp_path)
        with pytest.raises(OutputError, match="name too long"):
            restore(file, files, ENVIRON, takes_identity=False)
        assert everything(tmp_path) == before


def test_a_taken_identity_is_this_machines_from_its_first_moment_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = box(tmp_path / "1"), box(tmp_path / "2")
    back_up(tmp_path / "b.tar.gz", one, with_secrets=False)
    monkeypatch.setattr("zhcedge.app.restore.finish_restore", lambda files: False)  # the power is cut here
    restore(tmp_path / "b.tar.gz", two, ENVIRON, takes_identity=True)
    monkeypatch.undo()
    finish_restore(two)
    taken, first = read_identity(two.state), read_identity(one.state)
    assert taken is not None
    assert first is not None
    assert (taken.id, taken.machine) == (first.id, machine_mark())


@pytest.mark.skipif(os.geteuid() != 0, reason="cannot run here: needs root")
def test_what_root_makes_belongs_to_the_service(tmp_path: Path) -> None:
    one, two = box(tmp_path / "1"), ApplianceFiles(tmp_path / "2/etc/config.yaml", tmp_path / "2/state")
    shipped = tmp_path / "shipped.yaml"
    shipped.write_text(GOOD)
    back_up(tmp_path / "b.tar.gz", one, with_secrets=False)
    for folder, user in ((two.config.parent, 0), (two.state, SERVICE)):
        folder.mkdir(parents=True)
        os.chown(folder, user, SERVICE)
    restore(tmp_path / "b.tar.gz", two, ENVIRON, takes_identity=True)
    assert {path.stat().st_uid for path in two.state.rglob("*")} == {SERVICE}
    assert {path.stat().st_gid for path in (tmp_path / "2").rglob("*")} == {SERVICE}
    reset(two, ENVIRON, keeps_config=False, shipped=shipped)
    assert (two.config.stat().st_uid, two.config.stat().st_gid) == (0, SERVICE)


def test_a_folder_in_the_way_of_a_file_changes_nothing(tmp_path: Path) -> None:
    files, file = box(tmp_path / "1"), tmp_path / "b.tar.gz"
    file.write_bytes(archive({"config/config.yaml": GOOD.encode(), "state/models/mine": b"x"}))
    before = everything(tmp_path)
    with pytest.raises(OutputError, match="a folder is in the way"):
        restore(file, files, ENVIRON, takes_identity=False)
    assert everything(tmp_path) == before


def header(size: bytes, kind: bytes) -> bytes:
    """Of a tar member, with the size as written."""
    text = bytearray(tarfile.TarInfo("config/config.yaml").tobuf(tarfile.USTAR_FORMAT))
    text[124:136], text[156:157], text[148:156] = size, kind, b" " * 8
    text[148:156] = b"%06o\0 " % sum(text)
    return bytes(text)


@pytest.mark.parametrize("kind", [b"0", b"5", b"L", b"x", b"g", b"S"])
@pytest.mark.parametrize("size", [b"\x80" + b"\xff" * 11, b"\x80" + b"\0" * 4 + b"\xff" * 7, b"\xff" * 10 + b"\xfe\0"])
def test_a_size_that_can_not_be_is_refused(tmp_path: Path, kind: bytes, size: bytes) -> None:
    files, file = box(tmp_path / "1"), tmp_path / "b.tar.gz"
    file.write_bytes(gzip.compress(header(size, kind) + bytes(1024)))
    with pytest.raises(ConfigError, match="no backup"):
        read_archive(file, files)


def test_a_manifest_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    files, file = box(tmp_path / "1"), tmp_path / "b.tar.gz"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        about = tarfile.TarInfo("manifest.json")
        about.size = 100_000
        tar.addfile(about, io.BytesIO(b"[" * about.size))
    file.write_bytes(gzip.compress(plain.getvalue()))
    with pytest.raises(ConfigError, match="no backup"):
        read_archive(file, files)


def test_a_factory_reset_leaves_nothing_of_the_box(tmp_path: Path) -> None:
    files, shipped = box(tmp_path / "1"), tmp_path / "shipped.yaml"
    shipped.write_text(GOOD.replace("one", "new"))
    assert {path.name for path in what_goes(files, keeps_config=True)} >= {
        "identity.json",
        "outbox.db",
        "media",
        "models",
    }
    reset(files, ENVIRON, keeps_config=True, shipped=shipped)
    assert everything(files.state) == {}
    assert files.config.read_text() == GOOD
    assert (files.config.parent / "credentials/mqtt").exists()
    reset(files, ENVIRON, keeps_config=False, shipped=shipped)
    assert everything(tmp_path / "1") == {"etc/config.yaml": shipped.read_bytes()}


@pytest.mark.skipif(os.geteuid() != 0, reason="cannot run here: needs root")
def test_an_ordinary_user_is_told_and_sees_no_traceback(tmp_path: Path) -> None:
    files = box(tmp_path / "1")
    for folder in (files.config.parent, files.state):
        folder.chmod(0o700)
    os.seteuid(SERVICE)
    try:
        with pytest.raises(SourceMissingError, match="Permission denied"):
            list(back_up(Path("/tmp/zhc-edge-no-backup.tar.gz"), files, with_secrets=False))
        for keeps_config in (True, False):
            with pytest.raises(OutputError, match="Permission denied"):
                what_goes(files, keeps_config=keeps_config)
    finally:
        os.seteuid(0)


def test_a_reset_takes_the_credentials_from_the_unit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, unit = box(tmp_path / "1"), tmp_path / "credentials.conf"
    monkeypatch.setattr(factory_reset, "UNIT_CREDENTIALS", unit)
    unit.write_text("[Service]\nLoadCredential=mqtt:/etc/other/credentials/mqtt\n")
    assert unit not in what_goes(files, keeps_config=False)  # another box's, as in a trial
    unit.write_text(f"[Service]\nLoadCredential=mqtt:{files.config.parent}/credentials/mqtt\n")
    assert unit not in what_goes(files, keeps_config=True)
    reset(files, ENVIRON, keeps_config=False, shipped=tmp_path / "none")
    assert not unit.exists()


def test_a_hostile_name_reaches_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, file = box(tmp_path / "1"), tmp_path / "b.tar.gz"
    file.write_bytes(archive({"config/config.yaml": GOOD.encode(), "state/models/\x1b[2J": b"x"}))
    words = ["-c", str(files.config), "--state", str(files.state)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
        assert main(["restore", str(file), *words]) == 0
        assert main(["backup", str(tmp_path / "c.tar.gz"), *words]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["restore", "factory-reset"])
def test_words_of_the_help_are_not_torn_apart(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert not re.search(r"\w-$", capsys.readouterr().out, re.MULTILINE)  # nobody could copy `zhc-`, `edge`


@pytest.mark.parametrize("way", ["hangs", "is busy", "takes nobody"])
def test_a_daemon_that_can_not_say_that_it_runs_is_not_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    files, environ = box(tmp_path / "1"), {"RUNTIME_DIRECTORY": str(tmp_path)}
    monkeypatch.setattr("zhcedge.app.status._ANSWER_S", 5.0 if way == "is busy" else 0.05)
    before = everything(tmp_path / "1")
    with contextlib.ExitStack() as opened:
        daemon = opened.enter_context(socket.socket(socket.AF_UNIX))
        daemon.bind(str(tmp_path / "control.sock"))
        daemon.listen(0)
        if way == "takes nobody":
            waiting = opened.enter_context(socket.socket(socket.AF_UNIX))
            waiting.connect(str(tmp_path / "control.sock"))
        if way == "is busy":
            opened.callback(busy(daemon).join)
        with pytest.raises(DaemonAwayError):
            reset(files, environ, keeps_config=False, shipped=tmp_path / "none")
    assert everything(tmp_path / "1") == before


def busy(daemon: socket.socket) -> threading.Thread:
    """Answers one request as a daemon does that has too many."""

    def answer() -> None:
        client, _ = daemon.accept()
        with client:
            client.recv(1 << 16)
            client.sendall(json.dumps({"error": error_facts(NotNowError("too many requests"))}).encode() + b"\n")

    thread = threading.Thread(target=answer)
    thread.start()
    return thread

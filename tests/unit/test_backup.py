"""A backup holds what makes a box; a restore is whole or nothing, and takes nothing from a stranger's archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.app.appliance_files import ApplianceFiles
from zhcedge.app.backup import back_up
from zhcedge.app.factory_reset import reset, what_goes
from zhcedge.app.restore import PENDING, finish_restore, read_archive, restore
from zhcedge.config.files import drop_ins
from zhcedge.core.errors import ConfigError, SourceMissingError, ZhcEdgeError
from zhcedge.store.identity import machine_mark, read_identity, settle_identity

GOOD = "# mine\ndevice: one\nchannels: {gate: {source: {uri: 'pattern:boxes'}}}\n"
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
    (files.state / PENDING).write_text(json.dumps({str(new): str(files.config), str(done): str(tmp_path / "x")}))
    assert finish_restore(files.state)
    assert files.config.read_text() == "other"
    assert not finish_restore(files.state)


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

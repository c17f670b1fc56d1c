"""Use case `restore`: a box takes the place of another one, or goes back to what it was.

An archive is read and checked as a whole before anything is written. Then every file lies complete beside its place, a
list of the renames is written down, and they are done: a power cut before the list leaves the old files, one after it
leaves a list that the next `restore` finishes before all else, and that the daemon tells of.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from zhcedge.app.appliance_files import CONFIG, CONFIG_NAME, STATE, ApplianceFiles, give_to_owner_of
from zhcedge.app.backup import FORMAT, LIMIT_BYTES, MANIFEST
from zhcedge.config.files import drop_ins
from zhcedge.config.load import examine
from zhcedge.config.problems import shortened
from zhcedge.core.errors import ConfigError, OutputError, SourceMissingError
from zhcedge.core.files import read_regular, write_whole
from zhcedge.profiles import PROFILES
from zhcedge.store.identity import FILE_NAME as IDENTITY
from zhcedge.store.identity import identity_text, machine_mark, parse_identity

PENDING = "restore-pending.json"
_NEW, _OLD = ".restored-", ".replaced-"
_LIMIT_FILES = 10_000

_BAD = (
    OSError,
    EOFError,
    zlib.error,
    tarfile.TarError,
    ValueError,
    KeyError,
    TypeError,
    OverflowError,  # a size of more than 64 bits
    RecursionError,  # a list that is nested too deeply
)
"""What the readers of such files make of bad ones."""


def restore(file: Path, files: ApplianceFiles, environ: Mapping[str, str], *, takes_identity: bool) -> list[str]:
    """Put the archive's files in place; their names.

    Args:
        takes_identity: this box becomes the one that the archive is of, which must not run any more; else it stays who
            it is.

    Raises SourceMissingError for a file that can't be read; ConfigError for one that is no backup, is damaged, or holds
    a configuration with errors; NotNowError while the daemon runs; OutputError when something can't be written: then
    everything is as before.
    """
    files.needs_silence(environ)
    finish_restore(files)
    members = read_archive(file, files)
    _check(members, file)
    identity = f"{STATE}/{IDENTITY}"
    if not takes_identity:
        members.pop(identity, None)
    elif identity in members:
        # Bound to this machine before it lies in its place: a power cut behind that would make it a copied disk's.
        taken = parse_identity(members[identity])
        if taken is None:
            raise _no_backup(file, "its identity can't be read")
        members[identity] = identity_text(replace(taken, machine=machine_mark()))
    _lay_out({place: data for name, data in members.items() if (place := files.place_of(name)) is not None}, files)
    return list(members)


def read_archive(file: Path, files: ApplianceFiles) -> dict[str, bytes]:
    """Every member, each as its hash says. Raises SourceMissingError and ConfigError."""
    try:
        packed = read_regular(file, LIMIT_BYTES)
    except OSError as error:
        raise SourceMissingError(f"can't be read: {error.strerror or error}", where=str(file)) from error
    try:
        with gzip.open(io.BytesIO(packed)) as stream:
            plain = stream.read(LIMIT_BYTES + 1)
        if len(plain) > LIMIT_BYTES:
            raise _no_backup(file, "it unpacks to more than any backup holds")
        members = _members(plain, file)
        manifest = json.loads(members.pop(MANIFEST))
        hashes = dict(manifest["sha256"])
        format_ = manifest["format"]
    except _BAD as error:
        raise _no_backup(file, f"{type(error).__name__}: {error}") from error
    if format_ != FORMAT:
        raise _no_backup(file, f"its format is {format_!r}, and this version reads {FORMAT}")
    if hashes.keys() != members.keys():
        raise _no_backup(file, "its list does not name what is in it")
    folders = {str(folder) for name in members for folder in PurePosixPath(name).parents}
    for name, data in members.items():
        if files.place_of(name) is None or name in folders:
            raise _no_backup(file, f"{shortened(name)} has no business in it")
        if hashlib.sha256(data).hexdigest() != hashes[name]:
            raise _no_backup(file, f"{shortened(name)} is damaged")
    return members


def _members(plain: bytes, file: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is None or member.name in found or len(found) > _LIMIT_FILES:
                raise _no_backup(file, f"{shortened(member.name)} is no plain file, or comes twice")
            found[member.name] = stream.read()
    return found


def _no_backup(file: Path, why: str) -> ConfigError:
    return ConfigError(f"this is no backup that can be used: {why}", where=str(file), fix="take another one")


def _lay_out(contents: Mapping[Path, bytes], files: ApplianceFiles) -> None:
    """All of it or nothing. This box's own drop-ins go: they would be laid over the other one's configuration."""
    renames: dict[str, str] = {}
    try:
        for place, data in contents.items():
            _make_folder(place.parent)
            if place.is_dir():  # found out now, when nothing has been replaced
                raise IsADirectoryError(errno.EISDIR, "a folder is in the way", str(place))
            new = place.with_name(f"{_NEW}{place.name}")
            renames[str(new)] = str(place)
            mode = 0o600 if place.parent.name == "credentials" else 0o640
            write_whole(new, data, "a restored file", mode=mode, is_synced=True)
            give_to_owner_of(place.parent, new)
        moved = [old for old in drop_ins(files.config) if old not in contents] if files.config in contents else []
        for old in moved:
            renames[str(old)] = str(old.with_name(f"{_OLD}{old.name}"))
        text = json.dumps(renames).encode()
        write_whole(files.state / PENDING, text, "the list of restored files", mode=0o600, is_synced=True)
    except BaseException as error:
        for written in map(Path, renames):
            if written.name.startswith(_NEW):
                written.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OutputError(f"can't be written: {error.strerror or error}", where=str(error.filename)) from error
        raise
    finish_restore(files)


def _check(members: Mapping[str, bytes], file: Path) -> None:
    """The archive's configuration by itself; what it names need not be there. Raises ConfigError and OutputError."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in members.items():
            if name.startswith(f"{CONFIG}/") and name.endswith(".yaml") and "/." not in name:
                place = Path(folder) / name
                try:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(data)
                except OSError as error:
                    raise OutputError(f"can't be checked: {error.strerror}", where=str(file)) from error
        path = Path(folder) / CONFIG / CONFIG_NAME
        outcome = examine(path, (), {}, profiles=PROFILES) if path.exists() else ()
    if isinstance(outcome, tuple) and outcome:
        text = str(outcome[0]).replace(f"{folder}/{CONFIG}/", "")
        raise _no_backup(file, f"its configuration has errors: {text}")


def finish_restore(files: ApplianceFiles) -> bool:
    """Do the renames that a power cut has left; whether there were any. Raises OutputError."""
    try:
        renames = dict(json.loads(read_regular(files.state / PENDING, 16 << 20)))
    except _BAD:
        return False
    if not all(_is_ours(old, new, files) for old, new in renames.items()):
        fix = "name the same -c and --state as then, or remove this list"
        raise OutputError("an interrupted restore was of other files", where=str(files.state / PENDING), fix=fix)
    try:
        for old, new in renames.items():
            with contextlib.suppress(FileNotFoundError):  # done before the power cut
                Path(old).replace(new)
                _sync(Path(new).parent)
        (files.state / PENDING).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"a restore can't be finished: {error.strerror}", where=str(error.filename)) from error
    return True


def _is_ours(old: object, new: object, files: ApplianceFiles) -> bool:
    """Whether a restore renames so. The daemon can write the list, and root follows it: a file of the daemon's must not
    come to /etc by it."""
    if not isinstance(old, str) or not isinstance(new, str) or "\0" in old + new:
        return False
    before, after = Path(old), Path(new)
    names = (f"{_NEW}{after.name}", after.name), (before.name, f"{_OLD}{before.name}")
    return before.parent == after.parent and files.holds(after) and (before.name, after.name) in names


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    """With those above it, each for whom the one above is. Raises OSError."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o750, exist_ok=True)
        give_to_owner_of(folder.parent, folder)

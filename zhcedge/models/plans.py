"""Plans: models built for one GPU, kept in files that say what they were built for.

A plan's file: 8 bytes MAGIC, 4 bytes length of the header (little-endian), the header (JSON in UTF-8), the plan. The
header holds the identity, the plan's size, and a SHA-256 over identity and plan. Everything is checked before a byte
reaches the library: it would crash on a damaged plan, and runs one of another model without a word.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO

from zhcedge.core.errors import ModelError, OutputError

MAGIC = b"ZHCPLAN\x01"
SUFFIX = ".plan"
KERNELS_SUFFIX = ".kernels"
"""Of the file beside a plan where TensorRT for RTX keeps what it compiled for it."""

STORE_BYTES = 4 * 2**30
"""Default limit of a store: a dozen large models."""

RECIPE = 1
"""Grows when we build another plan from the same model and options."""

_LENGTH = struct.Struct("<I")
_MOST_HEADER_BYTES = 64 * 1024
_REBUILD = "build it again: zhc-edge model build"
_PART = re.compile(r"\.(.+)\.(\d+)\.part")


@dataclass(frozen=True)
class PlanIdentity:
    """What a plan was built of and for. Two plans with the same identity do the same.

    Attributes:
        model: SHA-256 of the bundle's model file.
        name: of the model, for people.
        precision: "int8", "fp16" or "fp32".
        input_shape: [largest batch, 3, height, width].
        workspace_mib: limit of scratch memory that the builder had.
        engine, version: the library, "tensorrt" or "tensorrt_rtx", and its version.
        targets: compute capabilities that it runs on, sorted: ("sm86",).
        platform: L4T release or driver, where plans depend on it; "" for TensorRT for RTX.
        recipe: RECIPE of the program that built it.
    """

    model: str
    name: str
    precision: str
    input_shape: tuple[int, ...]
    workspace_mib: int
    engine: str
    version: str
    targets: tuple[str, ...]
    platform: str = ""
    recipe: int = RECIPE

    @property
    def key(self) -> str:
        """Hexadecimal digits that differ when anything differs."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def file_name(self) -> str:
        """nanodet-g-416-int8-3f9c2b0a1d4e5f60.plan"""
        return f"{self.name}-{self.precision}-{self.key[:16]}{SUFFIX}"

    @staticmethod
    def from_dict(data: Mapping[str, object]) -> PlanIdentity:
        """What `dataclasses.asdict` gave, after JSON. Raises KeyError, TypeError or ValueError for anything else."""
        shape, targets = data["input_shape"], data["targets"]
        if not isinstance(shape, list) or not isinstance(targets, list):
            raise TypeError("shape and targets must be lists")
        texts = {name: str(data[name]) for name in ("model", "name", "precision", "engine", "version", "platform")}
        return PlanIdentity(
            **texts,
            input_shape=tuple(_whole(size) for size in shape),
            targets=tuple(map(str, targets)),
            workspace_mib=_whole(data["workspace_mib"]),
            recipe=_whole(data["recipe"]),
        )

    def differences(self, wanted: PlanIdentity) -> tuple[str, ...]:
        """What keeps this plan from being the wanted one, in words; empty when it serves.

        A plan for several GPUs serves each of them. Names are for people and may differ.
        """
        found = []
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(wanted, field.name)
            if field.name == "targets":
                if not set(theirs) <= set(mine):
                    found.append(f"built for {', '.join(mine)}, this is {', '.join(theirs)}")
            elif field.name != "name" and mine != theirs:
                found.append(f"{_WORDS[field.name]} {_shown(mine)}, not {_shown(theirs)}")
        return tuple(found)


_WORDS = {
    "model": "of model",
    "precision": "precision",
    "input_shape": "input",
    "workspace_mib": "workspace MiB",
    "engine": "library",
    "version": "library version",
    "platform": "platform",
    "recipe": "build recipe",
}


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    text = str(value)
    return f"{text[:12]}..." if re.fullmatch("[0-9a-f]{64}", text) else text or "none"


def write_plan(path: Path, identity: PlanIdentity, plan: bytes) -> None:
    """Write a plan's file: a temporary one, flushed to the disk, then renamed. Raises OutputError, leaving nothing."""
    header = json.dumps({"identity": asdict(identity), "bytes": len(plan), "sha256": _digest(identity, plan)}).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with temporary.open("wb") as stream:
                for part in (MAGIC, _LENGTH.pack(len(header)), header, plan):
                    stream.write(part)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"the plan can't be written: {error.strerror or error}",
            where=str(path),
            fix="free some space, or name another file with --out",
        ) from error


def read_identity(path: Path) -> PlanIdentity:
    """Of a plan's file, its payload unread. Raises ModelError when it is none."""
    with _opened(path) as stream:
        return _read_header(stream, path).identity


def read_plan(path: Path, wanted: PlanIdentity | None = None) -> tuple[PlanIdentity, bytes]:
    """A plan and its identity, verified.

    Args:
        wanted: what it must serve for; None takes any.

    Raises ModelError, naming what is wrong, for a file that is no plan, a truncated or changed one, and one that was
    built for something else.
    """
    with _opened(path) as stream:
        header = _read_header(stream, path)
        if wanted is not None and (differences := header.identity.differences(wanted)):
            raise ModelError(f"the plan is for something else: {'; '.join(differences)}", where=str(path), fix=_REBUILD)
        plan = stream.read(header.size_bytes + 1)
    if len(plan) != header.size_bytes:
        word = "truncated" if len(plan) < header.size_bytes else "followed by something"
        raise ModelError(f"the plan is {word}: {header.size_bytes} bytes are expected", where=str(path), fix=_REBUILD)
    if _digest(header.identity, plan) != header.sha256:
        raise ModelError("the plan was changed after it was built", where=str(path), fix=_REBUILD)
    return header.identity, plan


@dataclass(frozen=True)
class _Header:
    identity: PlanIdentity
    size_bytes: int
    sha256: str


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise ModelError(f"the plan can't be read: {error.strerror or error}", where=str(path), fix=_REBUILD) from error


def _read_header(stream: BinaryIO, path: Path) -> _Header:
    """Raises ModelError for what is no plan of ours, or one whose header is damaged."""
    start = stream.read(len(MAGIC) + _LENGTH.size)
    if start[: len(MAGIC)] != MAGIC:
        raise ModelError("is no plan of zhc-edge", where=str(path), fix=_REBUILD)
    try:
        (length,) = _LENGTH.unpack(start[len(MAGIC) :])
        if length > _MOST_HEADER_BYTES:
            raise ValueError("the header is too long")
        data = json.loads(stream.read(length))
        return _Header(PlanIdentity.from_dict(data["identity"]), _whole(data["bytes"]), str(data["sha256"]))
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the plan's header is damaged ({error})", where=str(path), fix=_REBUILD) from error


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _digest(identity: PlanIdentity, plan: bytes) -> str:
    """Over both, so that a plan can't be given another identity."""
    digest = hashlib.sha256(identity.key.encode())
    digest.update(plan)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut (rename(2) alone does not)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class PlanStore:
    """A folder of plans, of limited size: the plan that was not used for the longest time goes first.

    Several processes may use one folder: files appear whole, and a plan that is gone is built again. Methods raise
    OutputError when the folder can't be written.
    """

    def __init__(self, folder: Path, limit_bytes: int = STORE_BYTES) -> None:
        self.folder, self._limit = folder, limit_bytes

    def path_of(self, identity: PlanIdentity) -> Path:
        return self.folder / identity.file_name

    def put(self, identity: PlanIdentity, plan: bytes) -> Path:
        """Keep a plan; older ones go where the limit wants it. A plan above the limit is kept alone."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"can't be made: {error.strerror}", where=str(self.folder)) from error
        self._make_room(len(plan), self.path_of(identity))
        write_plan(self.path_of(identity), identity, plan)
        return self.path_of(identity)

    def get(self, wanted: PlanIdentity) -> tuple[PlanIdentity, bytes]:
        """The plan for `wanted`, verified, now the one used last. Raises ModelError where there is none."""
        for path in self._serving(wanted):
            found = read_plan(path, wanted)
            with contextlib.suppress(OSError):  # a store that may only be read
                os.utime(path)
            return found
        raise ModelError(f"no plan of {wanted.name} for this machine", where=str(self.folder), fix=_REBUILD)

    def has(self, wanted: PlanIdentity) -> bool:
        """Whether a plan for `wanted` is there, its payload unread."""
        return any(True for _ in self._serving(wanted))

    def _serving(self, wanted: PlanIdentity) -> Iterator[Path]:
        for path, identity in self.plans():
            if not identity.differences(wanted):
                yield path

    def plans(self) -> list[tuple[Path, PlanIdentity]]:
        """Every plan with a sound header, the one used last first. What is none is passed over."""
        found = []
        for path in self._files():
            with contextlib.suppress(ModelError):
                found.append((path, read_identity(path)))
        return found

    def sweep(self, process: int) -> None:
        """Remove what a process that was killed has half written."""
        for path in self._entries():
            part = _PART.fullmatch(path.name)
            if part and int(part[2]) == process:
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Plans, the one used last first."""
        dated = []
        for path in self._entries():
            with contextlib.suppress(OSError):  # gone meanwhile
                if path.suffix == SUFFIX:
                    dated.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(dated, reverse=True)]

    def _entries(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except OSError:
            return []

    def _make_room(self, size_bytes: int, target: Path) -> None:
        left = self._limit - size_bytes
        for path in self._files():
            if path == target:
                continue  # it is replaced
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if size > left:
                    path.unlink()
                    path.with_suffix(KERNELS_SUFFIX).unlink(missing_ok=True)
                else:
                    left -= size

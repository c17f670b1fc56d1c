"""Who this device is: made at the first start, and anew where a disk turns out to be a copy of another device's.

A golden image or a cloned card brings the file of its original along; what tells them apart is the machine-id, which
systemd makes anew for a copy that was prepared as machine-id(5) says. Only a keyed hash of it is kept, as that page
asks.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from zhcedge.core.files import read_regular, write_whole

FILE_NAME = "identity.json"

_APPLICATION = b"zhc-edge identity"
_LIMIT_BYTES = 4096


@dataclass(frozen=True)
class Identity:
    """Of one device.

    Attributes:
        id: random, 32 hexadecimal digits.
        created: seconds since the epoch, by a clock that may not have been set.
        machine: mark of the machine that it was made on; "" where that has none.
    """

    id: str
    created: float
    machine: str


def machine_mark(file: Path = Path("/etc/machine-id")) -> str:
    """A hash of the machine-id for this program alone; "" where there is none (yet), as in a container."""
    try:
        text = read_regular(file, _LIMIT_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
    if len(text) != 32 or not set(text) <= set("0123456789abcdef"):  # "uninitialized", for one
        return ""
    return hmac.new(_APPLICATION, text.encode(), hashlib.sha256).hexdigest()[:32]


def read_identity(folder: Path) -> Identity | None:
    """The one that is kept there; None for none, or one that can't be read."""
    try:
        return parse_identity(read_regular(folder / FILE_NAME, _LIMIT_BYTES))
    except OSError:
        return None


def parse_identity(data: bytes) -> Identity | None:
    """From the file's contents; None where they say nothing."""
    try:
        facts = json.loads(data)
        return Identity(str(facts["id"]), float(facts["created"]), str(facts["machine"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def identity_text(identity: Identity) -> bytes:
    """The file's contents."""
    return (json.dumps(asdict(identity), indent=2) + "\n").encode()


def write_identity(folder: Path, identity: Identity) -> None:
    """Keep it, through a power cut. Raises OutputError."""
    write_whole(folder / FILE_NAME, identity_text(identity), "the identity", mode=0o644, is_synced=True)


def settle_identity(
    folder: Path, machine: str, now_s: float, on_copy: Callable[[], None] = lambda: None
) -> tuple[Identity, Identity | None]:
    """The device's identity, made where there is none; and the one that it takes the place of, on a copied disk.

    A machine without a mark, or an identity made on one, proves nothing: then it stays.

    Args:
        on_copy: what has to be done on a copied disk, before its new identity says that it has been.

    Raises OutputError, and what `on_copy` raises.
    """
    kept = read_identity(folder)
    if kept is not None and (not machine or kept.machine == machine):
        return kept, None
    if kept is not None and not kept.machine:
        kept = Identity(kept.id, kept.created, machine)
        write_identity(folder, kept)
        return kept, None
    if kept is not None:
        on_copy()
    made = Identity(secrets.token_hex(16), now_s, machine)
    write_identity(folder, made)
    return made, kept

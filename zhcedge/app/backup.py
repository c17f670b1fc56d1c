"""Use case `backup`: what makes this box different from another one, in one archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import time
from pathlib import Path

from zhcedge import __version__
from zhcedge.app.appliance_files import ApplianceFiles
from zhcedge.core.errors import OutputError, SourceMissingError
from zhcedge.core.files import check_folder, read_regular, write_whole

FORMAT = 1
MANIFEST = "manifest.json"
LIMIT_BYTES = 2 << 30
"""Of all members together: models are some hundred megabytes at most."""


def back_up(file: Path, files: ApplianceFiles, *, with_secrets: bool) -> list[str]:
    """Write the archive, for its owner alone; names of what is in it.

    Args:
        with_secrets: take the folder of credentials along.

    Raises SourceMissingError for a file that can't be read, OutputError when the archive can't be written.
    """
    check_folder(file, "the backup")
    members: dict[str, bytes] = {}
    path = files.config
    try:
        for name, path in files.members(with_secrets=with_secrets):
            members[name] = read_regular(path, LIMIT_BYTES)
    except OSError as error:
        where = str(error.filename or path)
        raise SourceMissingError(f"can't be read: {error.strerror or error}", where=where, fix="use sudo") from error
    if not members:
        raise SourceMissingError("there is nothing to keep", where=str(files.state), fix="is this the right device?")
    if sum(map(len, members.values())) > LIMIT_BYTES:
        raise OutputError(f"it would be larger than {LIMIT_BYTES >> 30} GiB", where=str(file), fix="remove old models")
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "created": time.time(),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in {MANIFEST: json.dumps(manifest, indent=2).encode(), **members}.items():
            about = tarfile.TarInfo(name)
            about.size, about.mtime, about.mode = len(data), int(time.time()), 0o600
            archive.addfile(about, io.BytesIO(data))
    write_whole(file, gzip.compress(plain.getvalue(), 6), "the backup", mode=0o600, is_synced=True)
    return list(members)

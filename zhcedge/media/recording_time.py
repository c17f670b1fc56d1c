"""When a recording was made, as far as its file says."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

from zhcedge.core.errors import MediaError, SourceMissingError
from zhcedge.core.file_times import stamp_ns, usable_ns
from zhcedge.media._vendor import require_av
from zhcedge.media.demux import check_file, open_container, video_stream

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def recorded_at_ns(path: Path) -> int | None:
    """Wall clock of the first picture: by the name of a clip of ours, else by the creation time in the header.

    None where neither says anything or the file can't be read. Never raises for a bad file.

    Raises BackendUnavailableError without PyAV.
    """
    require_av()
    named_ns = stamp_ns(path.name)
    if named_ns is not None:
        return named_ns
    where = str(path)
    try:
        check_file(where, where)
        with open_container(where, where) as container:
            times = (container.metadata, video_stream(container, where).metadata)
            text = next((one["creation_time"] for one in times if "creation_time" in one), "")
    except (MediaError, SourceMissingError):  # whoever plays it says what is wrong with it
        return None
    return _time_ns(text)


def _time_ns(text: str) -> int | None:
    try:
        # Before Python 3.11 it does not know that Z is UTC.
        when = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        return None
    if when.tzinfo is None:  # FFmpeg means UTC
        when = when.replace(tzinfo=timezone.utc)
    return usable_ns((when - _EPOCH) // timedelta(microseconds=1) * 1000)

"""How long a video is, for a progress bar: from its header, without decoding."""

from __future__ import annotations

from pathlib import Path

from zhcedge.core.errors import MediaError, SourceMissingError
from zhcedge.media._vendor import require_av
from zhcedge.media.demux import check_file, open_container, video_stream

_TICKS_PER_S = 1_000_000  # AV_TIME_BASE, the unit of a container's duration


def frame_count(path: Path) -> int:
    """Frames that the header promises, 0 where it says nothing or can't be read. Never raises for a bad file, never
    waits for a pipe or a device.

    Raises BackendUnavailableError without PyAV.
    """
    require_av()
    where = str(path)
    try:
        check_file(where, where)
        with open_container(where, where) as container:
            stream = video_stream(container, where)
            if stream.frames:
                return int(stream.frames)
            rate = stream.average_rate
            return round(container.duration / _TICKS_PER_S * float(rate)) if container.duration and rate else 0
    except (MediaError, SourceMissingError):  # whoever plays it says what is wrong with it
        return 0

"""Plays files one after the other and says how each went: a program of its own, so that a crash of FFmpeg is seen.

    python -m tests.system.play_files KIND < paths

Prints two JSON lines a file: {"start": path}, then its outcome. A file that hangs for ALARM_S ends the program by
SIGALRM, and more than MEMORY_BYTES of address space end a file by MemoryError.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Callable

from zhcedge.backends.cpu.image_source import ImageSource
from zhcedge.backends.cpu.picture_source import PictureSource
from zhcedge.backends.cpu.source import PyAvSource
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.ports import EndOfStream, Idle
from zhcedge.core.requests import SourceOptions, SourceRequest
from zhcedge.media import demux
from zhcedge.service.clock import SystemClock

ALARM_S = 20
MEMORY_BYTES = 3 * 2**30
MOST_FRAMES = 200

KINDS: dict[str, Callable[[SourceRequest], PyAvSource | PictureSource]] = {
    "video": lambda request: PyAvSource(request, None),
    "stream": lambda request: PyAvSource(request, None),
    "image": lambda request: ImageSource(request, None),
}


def play(kind: str, path: str) -> dict[str, object]:
    """What came of a file: frames, warnings, and the error that ended it, if one did."""
    options = SourceOptions(connect_timeout_s=1.0, read_timeout_s=1.0)
    source = KINDS[kind](SourceRequest(0, "fuzz", path, False, False, SystemClock(), options))
    frames, last_s, error = 0, -1.0, None
    started_s = time.monotonic()
    try:
        source.open()
        while frames < MOST_FRAMES and not isinstance(lease := source.read(1.0), EndOfStream):
            if isinstance(lease, Idle):
                continue
            if lease.info.media_time_s <= last_s or lease.info.sequence < frames:
                error = "times do not grow"
                break
            last_s, frames = lease.info.media_time_s, frames + 1
            for plane in lease.surface.planes:
                plane.buffer[-1, -1].item()  # the last byte is there
            lease.release()
    except ZhcEdgeError as problem:
        error = f"{type(problem).__name__}: {problem}"
    except Exception as problem:  # noqa: BLE001  this is what is looked for
        error = f"TRACEBACK {type(problem).__name__}: {problem}"
    finally:
        source.close()
    seconds = round(time.monotonic() - started_s, 3)
    return {"path": path, "frames": frames, "error": error, "warnings": list(source.warnings), "seconds": seconds}


def main(kind: str) -> None:
    demux.OPEN_TIMEOUT_S = 1.0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        path = line.rstrip("\n")
        print(json.dumps({"start": path}), flush=True)
        signal.alarm(ALARM_S)
        outcome = play(kind, path)
        signal.alarm(0)
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

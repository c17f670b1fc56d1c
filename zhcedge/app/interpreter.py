"""Python processes of ours: how one is started, and how one ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from typing import NoReturn


def command_for(module: str) -> list[str]:
    """The command line that runs `module` as a program, with this process's search path and nothing before it.

    `python -m` would put the working directory first: a file called av.py there would be imported, and run, in place
    of the library.
    """
    start = f"import sys; sys.path[:] = {sys.path!r}; import runpy; runpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-c", start]


def leave(code: int) -> NoReturn:
    """End this process at once when a thread still runs, in the usual way otherwise.

    A thread that waits in FFmpeg for a camera asks the interpreter several times a second whether it may go on. It
    crashes the process when the interpreter is being torn down by then. Libraries that tidy up at exit may also wait
    for a lost GPU.
    """
    if threading.active_count() == 1:
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody is left to tell
            stream.flush()
    os._exit(code)

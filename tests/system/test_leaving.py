"""A process of ours ends although a thread still waits in FFmpeg for a camera that never answers.

FFmpeg's thread asks the interpreter several times a second whether to go on, which has ended frame processes by SIGSEGV
while the interpreter was being torn down. So nothing is torn down while a thread still runs.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.system.rtsp import HOST, black_hole

SCRIPT = """
import atexit, os, sys, threading, time
import av
from zhcedge.app.interpreter import leave

def look():
    try:
        av.open(sys.argv[1], timeout=20.0)
    except av.FFmpegError:
        pass

atexit.register(os.write, 1, b"torn down")
if sys.argv[1]:
    threading.Thread(target=look, daemon=True).start()
    time.sleep(0.3)
print("done", flush=True)
leave(int(sys.argv[2]))
"""


def end(address: str, code: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, address, str(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("code", [0, 69])
def test_nothing_is_torn_down_below_a_thread_that_still_runs(code: int) -> None:
    with black_hole() as port:
        ended = end(f"rtsp://{HOST}:{port}/cam", code)
    assert (ended.returncode, ended.stdout) == (code, "done\n"), ended.stderr


@pytest.mark.parametrize("code", [0, 69])
def test_without_other_threads_the_process_tidies_up(code: int) -> None:
    ended = end("", code)
    assert (ended.returncode, ended.stdout) == (code, "done\ntorn down")

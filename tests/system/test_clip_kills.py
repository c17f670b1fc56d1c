"""A process that writes clips is killed at random moments: whatever is in the index decodes to its end.

`tools/soak clips` does it more often.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.contract.clip_scene import make_video
from tests.contract.media_store import assert_in_line, scan
from zhcedge.store.clips import MediaIndex

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("clip_child.py")
KILLS = int(os.environ.pop("ZHC_TEST_CLIP_KILLS", "15"))
LONGEST_S = 1.0


@pytest.mark.slow
@pytest.mark.company
def test_whenever_it_is_killed_every_indexed_file_decodes_to_its_end(tmp_path: Path) -> None:
    video = make_video(tmp_path / "video.mp4", 20, b_frames=2, size=(320, 240))
    storage = tmp_path / "media"
    chance = random.Random(KILLS)
    checked: set[Path] = set()
    recovered = 0
    for number in range(KILLS):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(CHILD), str(video), str(storage)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, LONGEST_S))
        finally:
            child.kill()
            child.communicate()
        index = MediaIndex(storage)
        # What the killed one had put into the index is right before anybody repairs anything.
        known = {file.path for file in index.files()}
        for file in index.files():
            assert file.path.stat().st_size == file.size_bytes, f"kill {number}"
        recovered += scan(storage, index).recovered
        assert assert_in_line(storage, index, checked) >= len(known) >= 1, f"kill {number}"
        index.close()
    assert recovered  # else the moments were none

"""`backup`, `restore` and `factory-reset` as programs: beside a running daemon, and killed in the middle."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.test_control_socket import site
from zhcedge.app.appliance_files import ApplianceFiles
from zhcedge.app.restore import finish_restore

pytestmark = [pytest.mark.slow, pytest.mark.company]

KILLS = 20
FILES = 100  # so that the renames take a while
CHILD = """
import sys
from pathlib import Path
from zhcedge.app.appliance_files import ApplianceFiles
from zhcedge.app.restore import restore
files = ApplianceFiles(Path(sys.argv[2]) / "etc/config.yaml", Path(sys.argv[2]) / "state")
print("go", flush=True)
restore(Path(sys.argv[1]), files, {"RUNTIME_DIRECTORY": "/nonexistent"}, takes_identity=False)
print("done", flush=True)
"""


def zhc_edge(*words: str, state: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "STATE_DIRECTORY": str(state), "RUNTIME_DIRECTORY": str(state)}
    return subprocess.run(
        [sys.executable, "-m", "zhcedge", *words], capture_output=True, text=True, env=environ, check=False
    )


def write_box(folder: Path, name: str) -> Path:
    """Every file of it says `name`."""
    for path, text in {
        "etc/config.yaml": f"device: {name}\nchannels: {{gate: {{source: {{uri: 'pattern:boxes'}}}}}}\n",
        "etc/conf.d/10.yaml": f"channels: {{{name}: {{source: {{uri: 'pattern:boxes'}}}}}}\n",
        **{f"state/models/mine/{number}": name for number in range(FILES)},
        "state/last-good.json": f'"{name}"',
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def names_in(folder: Path, names: tuple[str, ...]) -> set[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {name for path in files for name in names if name in path.read_text()}


def test_a_restore_that_is_killed_leaves_the_old_box_or_the_new_one(tmp_path: Path) -> None:
    old = write_box(tmp_path / "template", "oldbox")
    new = write_box(tmp_path / "new", "newbox")
    file = tmp_path / "b.tar.gz"
    done = zhc_edge("backup", str(file), "-c", str(new / "etc/config.yaml"), "--state", str(new / "state"), state=new)
    assert done.returncode == 0, done.stderr
    seeded, longest_s = random.Random(1), 0.0
    for number in range(KILLS):
        here = tmp_path / str(number)
        shutil.copytree(old, here)
        command = [sys.executable, "-c", CHILD, str(file), str(here)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "go\n"
            if longest_s:
                time.sleep(seeded.uniform(0.0, longest_s))
            else:  # the first one is not killed
                began_s = time.monotonic()
                assert child.stdout.readline() == "done\n"
                longest_s = time.monotonic() - began_s
            child.kill()
        finish_restore(ApplianceFiles(here / "etc/config.yaml", here / "state"))
        assert len(names_in(here, ("oldbox", "newbox"))) == 1, f"mixed after kill {number}"


def test_a_running_daemon_is_not_restored_or_reset_under_its_feet(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        words = ("-c", str(here.config), "--state", str(tmp_path))
        file = tmp_path / "b.tar.gz"
        assert zhc_edge("backup", str(file), *words, state=tmp_path).returncode == 0
        before = here.config.read_bytes()
        for command in (("restore", str(file)), ("factory-reset", "--yes")):
            done = zhc_edge(*command, *words, state=tmp_path)
            assert done.returncode == 75, done.stderr
            assert "the daemon is running" in done.stderr
        assert here.config.read_bytes() == before
        assert here.is_active()


def test_a_reset_asks_first(tmp_path: Path) -> None:
    box = write_box(tmp_path / "box", "oldbox")
    words = ("-c", str(box / "etc/config.yaml"), "--state", str(box / "state"))
    done = zhc_edge("factory-reset", *words, state=box)
    assert done.returncode == 2
    assert names_in(box, ("oldbox",)) == {"oldbox"}
    done = zhc_edge("factory-reset", "--yes", *words, state=box)
    assert done.returncode == 0, done.stderr
    assert list((box / "state").iterdir()) == []

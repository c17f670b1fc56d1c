"""What the doctor asks of children: a library that crashes or hangs takes none but its child along."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zhcedge.app.doctor_commands import ask
from zhcedge.app.doctor_libraries import look_at_libraries

GOOD = "channels: {gate: {source: {uri: 'pattern:boxes'}}}\nmqtt: {enabled: false}\n"
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def library(folder: Path, name: str, code: str) -> None:
    """A package on the path, once `folder` is."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)


@pytest.mark.parametrize(
    ("name", "code", "state", "reason"),
    [
        ("jetson_utils", CRASH, "note", "SIGSEGV"),
        ("jetson_utils", "HAS_JETSON_UTILS_EXT = False", "note", "C extension"),
        ("tensorrt", "import no_such_module_at_all", "note", "no_such_module_at_all"),
        ("onnxruntime", "raise ImportError('libcudnn.so.9: cannot open')", "bad", "libcudnn"),
    ],
)
def test_a_library_that_does_not_load_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, state: str, reason: str
) -> None:
    library(tmp_path, name, code)
    monkeypatch.syspath_prepend(str(tmp_path))
    *broken, well = look_at_libraries("cpu", loads_cuda=False)
    (finding,) = [one for one in broken if one.text.startswith(name.replace("_", "-"))]
    assert finding.state == state
    assert reason in finding.text
    assert finding.fix
    assert "av " in well.text


def test_a_decoder_that_crashes_does_not_end_the_screen(tmp_path: Path) -> None:
    library(tmp_path / "lib", "av", CRASH)
    config = tmp_path / "config.yaml"
    config.write_text(GOOD)
    path = os.pathsep.join([str(tmp_path / "lib"), *filter(None, sys.path)])
    command = [sys.executable, "-m", "zhcedge", "doctor", "-c", str(config)]
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    bad = {" ".join(line.split()[1:3]) for line in done.stdout.splitlines() if line.startswith("bad")}
    assert {"library av", "camera gate"} <= bad
    assert "clock" in done.stdout


def test_the_screen_loads_no_library_of_a_vendor_in_its_own_process(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(GOOD)
    code = f"""
import sys
from zhcedge.cli import main
main(["doctor", "-c", {str(config)!r}, "--report", {str(tmp_path / "r.tar.gz")!r}, "--seconds", "0"])
print(sorted({{"onnxruntime", "av", "tensorrt_rtx", "pycuda", "cuda"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_a_program_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    outcome = ask(("sh", "-c", f"echo begun; sleep 1000 & echo $! > {note}; wait"), 3.0)
    assert outcome.is_late
    assert outcome.out == "begun\n"
    state = Path(f"/proc/{note.read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "what it has started still runs"
        time.sleep(0.01)


def test_a_program_that_is_not_there_is_an_outcome() -> None:
    outcome = ask(("no-such-program-here",), 1.0)
    assert outcome.code == 127
    assert "no-such-program-here" in outcome.why

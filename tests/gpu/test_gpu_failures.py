"""Bad days of a GPU: lost while running, hanging, out of memory, not there. An error of ours in bounded time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gpu.support_cuda import open_device
from zhcedge.core.errors import PipelineError
from zhcedge.core.types import ImageFormat

if TYPE_CHECKING:
    from zhcedge.backends.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
STALL_S = 30.0  # after which the collector calls a launch a hang


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with open_device() as opened:
        yield opened


def in_a_process_of_its_own(
    *arguments: str, timeout_s: float = 180, **environ: str
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH", "")) if path)
    environment = {**os.environ, "PYTHONPATH": paths, **environ}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )


def lines(result: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def test_a_kernel_that_traps_ends_the_run_within_seconds_and_closing_returns(
    device: CudaDevice, tmp_path: Path
) -> None:
    result = in_a_process_of_its_own(str(Path(__file__).with_name("lost_gpu.py")), str(tmp_path), "trap")
    told = lines(result)
    assert told, result.stderr
    assert (told[0]["kind"], told[0]["phase"]) == ("PipelineError", "failed"), told
    assert "the GPU reported" in str(told[0]["error"])
    assert float(str(told[0]["seconds"])) < 15
    assert len(told) == 2, f"closing crashed: exit status {result.returncode}; {result.stderr[-2000:]}"
    assert float(str(told[1]["closed_s"])) < 30
    assert told[1]["left"] == []  # no half-written video


def test_a_kernel_that_never_ends_is_called_a_hang(device: CudaDevice, tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("lost_gpu.py"))
    try:
        result = in_a_process_of_its_own(script, str(tmp_path), "spin", timeout_s=STALL_S + 90)
        told = lines(result)
    except subprocess.TimeoutExpired as expired:  # closing a stuck GPU may hang: the control process kills it then
        output = expired.stdout or b""
        text = output.decode() if isinstance(output, bytes) else output
        told = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert told
    assert told[0]["kind"] == "PipelineError"
    assert "no result for" in str(told[0]["error"])
    assert float(str(told[0]["seconds"])) < STALL_S + 25


def test_ten_terabytes_are_refused_with_a_table_of_what_everyone_holds(device: CudaDevice) -> None:
    device.arena.surface(ImageFormat(1920, 1080), "channel gate")
    with pytest.raises(PipelineError, match=r"no memory for 10485760\.0 MiB") as caught:
        device.arena.memory(10 * 2**40, "tensor of dreams")
    assert caught.value.where == "tensor of dreams"
    assert "channel gate: 3." in caught.value.what
    assert "MiB are free" in caught.value.what
    assert device.arena.memory(4096, "afterwards")
    assert not device.context.is_lost()


def test_without_a_gpu_it_is_said_which_command_to_try(device: CudaDevice) -> None:
    code = (
        "from zhcedge.backends.cuda.device import CudaDevice\n"
        "from zhcedge.core.errors import BackendUnavailableError\n"
        "from zhcedge.core.requests import DeviceSettings\n"
        "try:\n    CudaDevice(DeviceSettings())\n"
        "except BackendUnavailableError as error:\n    print(error)\n"
    )
    result = in_a_process_of_its_own("-c", code, CUDA_VISIBLE_DEVICES="-1")
    assert "no usable GPU" in result.stdout, result.stderr
    assert "nvidia-smi" in result.stdout

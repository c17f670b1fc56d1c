"""A reboot is asked for when a GPU that has worked does not come back, once, and only where it is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from zhcedge.app.reboot_request import FAILURES, FILE_NAME, RebootRequest
from zhcedge.core.errors import BackendUnavailableError, HangError, PipelineError, ZhcEdgeError
from zhcedge.core.lifecycle import Phase
from zhcedge.service.liveness import Liveness

LOST, HANG = BackendUnavailableError("the GPU is lost"), HangError("no sign of life")


def fail(request: RebootRequest, error: ZhcEdgeError, times: int = 1) -> None:
    for _ in range(times):
        request.frame_process_failed(error, -9, 1.0)


@pytest.fixture
def request_(tmp_path: Path) -> RebootRequest:
    made = RebootRequest.from_environment({"RUNTIME_DIRECTORY": str(tmp_path)}, is_wanted=True)
    made.phase_changed(Phase.ACTIVE, ())
    return made


@pytest.mark.parametrize("error", [LOST, HANG])
def test_after_so_many_starts_in_a_row(request_: RebootRequest, tmp_path: Path, error: ZhcEdgeError) -> None:
    fail(request_, error, FAILURES - 1)
    assert not (tmp_path / FILE_NAME).exists()
    fail(request_, error)
    assert error.what in (tmp_path / FILE_NAME).read_text()
    (tmp_path / FILE_NAME).unlink()
    fail(request_, error, 3 * FAILURES)
    assert not (tmp_path / FILE_NAME).exists()


def test_what_comes_back_in_between_begins_anew(request_: RebootRequest, tmp_path: Path) -> None:
    fail(request_, LOST, FAILURES - 1)
    request_.phase_changed(Phase.ACTIVE, ())
    fail(request_, LOST, FAILURES - 1)
    fail(request_, PipelineError("something else"))
    fail(request_, HANG, FAILURES - 1)
    assert not (tmp_path / FILE_NAME).exists()


def test_a_gpu_that_comes_back_after_all_takes_the_request_back(request_: RebootRequest, tmp_path: Path) -> None:
    fail(request_, LOST, FAILURES)
    assert (tmp_path / FILE_NAME).exists()
    request_.phase_changed(Phase.ACTIVE, ())
    assert not (tmp_path / FILE_NAME).exists()


def test_a_gpu_that_was_never_there_reboots_nothing(tmp_path: Path) -> None:
    never = RebootRequest.from_environment({"RUNTIME_DIRECTORY": str(tmp_path)}, is_wanted=True)
    fail(never, LOST, 10 * FAILURES)
    unwanted = RebootRequest.from_environment({"RUNTIME_DIRECTORY": str(tmp_path)}, is_wanted=False)
    unwanted.phase_changed(Phase.ACTIVE, ())
    fail(unwanted, LOST, 10 * FAILURES)
    nowhere = RebootRequest.from_environment({}, is_wanted=True)
    nowhere.phase_changed(Phase.ACTIVE, ())
    fail(nowhere, LOST, 10 * FAILURES)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_stands_still_is_a_hang() -> None:
    liveness = Liveness(0.0)
    liveness.fault(0, Phase.ACTIVE, 0.0)
    assert isinstance(liveness.fault(0, Phase.ACTIVE, 1e6), HangError)

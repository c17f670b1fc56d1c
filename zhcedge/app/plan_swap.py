"""The wanted plan, built beside a run that goes on without it, and the moment when the run may take it.

The swap is a drain and a new start of the frame process: between two batches, with everything allocated and sealed
anew, and the broker's connection untouched. It takes as long as a start does. A run that would lose something by it (a
file that is written, a video that would begin again) goes on as it is, and the plan is taken at its next start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from zhcedge.app.build_process import BuildProcess
from zhcedge.app.model_build import BuildReport, BuildRequest, build_model
from zhcedge.config.schema import Config
from zhcedge.core.errors import PipelineError, ZhcEdgeError
from zhcedge.core.message_ids import MessageId, tagged

log = logging.getLogger(__name__)

Build = Callable[[BuildRequest, Callable[[BuildProcess], None]], BuildReport]

_CLOSE_S = 10.0


class PlanSwap:
    """At most one build in a run of the daemon: one that did not help the last time would not help again.

    Args:
        wake: called when `is_ready` or `failure` has changed; any thread.
        build: does it; blocks.

    `start`, `take` and `close` belong to the control loop's thread.
    """

    def __init__(self, wake: Callable[[], None], build: Build | None = None) -> None:
        self._wake, self._build = wake, build or _build
        self._thread: threading.Thread | None = None
        self._process: BuildProcess | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self.failure = ""
        """Why there is no plan, for people; empty while there is hope."""

    def start(self, request: BuildRequest) -> None:
        """Begin to build; nothing happens the second time."""
        if self._thread is not None:
            return
        # A build that ended with this thread would be killed: it lives until the build is done.
        self._thread = threading.Thread(target=self._run, args=(request,), name="plan build", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """The plan is there and was not taken yet."""
        return self._ready.is_set()

    def take(self) -> None:
        """The run ends to start again with the plan."""
        self._ready.clear()

    def _run(self, request: BuildRequest) -> None:
        try:
            report = self._build(request, self._watch)
            log.info("plan built: %s", report.path, extra=tagged(MessageId.PLAN_BUILT))
            self._ready.set()
        except ZhcEdgeError as error:
            self._fail(error)
        # The thread's last resort: the daemon goes on without the plan, and says why.
        except Exception as error:
            log.exception("the build of the plan failed")
            self._fail(PipelineError(f"{type(error).__name__}: {error}", where="plan build"))
        self._wake()

    def _fail(self, error: ZhcEdgeError) -> None:
        if not self._is_closed:
            log.error("the plan was not built: %s", error, extra=tagged(MessageId.PLAN_FAILED))
            self.failure = f"its plan was not built: {error}"

    def _watch(self, process: BuildProcess) -> None:
        with self._lock:
            self._process = process
            is_late = self._is_closed
        if is_late:
            process.cancel()

    def close(self) -> None:
        """End a build that is still going on; twice is fine."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if self._thread is not None and self._thread.is_alive():
            if process is not None:
                process.cancel()
            self._thread.join(_CLOSE_S)


def may_swap(config: Config) -> bool:
    """Whether the frame process can start again without losing anything: live or looped sources, no files written."""
    channels = config.channels.values()
    return all(channel.source.kind in ("stream", "pattern") or channel.source.loop for channel in channels) and not any(
        sink.path for channel in channels for sink in channel.sinks
    )


def _build(request: BuildRequest, watch: Callable[[BuildProcess], None]) -> BuildReport:
    return build_model(request, on_process=watch)

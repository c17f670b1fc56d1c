"""The frame process beside an event path that is idle or as busy as it can be."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable

from mqtt_flow import Flow

from zhcedge.app.interpreter import command_for
from zhcedge.config.load import dump
from zhcedge.config.schema import Config
from zhcedge.pipeline.segment import Segment
from zhcedge.service.frame_process import FrameProcess, eventfd

START_S = 180.0


class Frames:
    """The daemon's own frame process, and the latencies that it writes into the ring. A context manager.

    A latency is from the moment the decoder handed the frame over to that at which its detections were in the ring,
    both noted by the frame process: how late this process reads them does not count.
    """

    def __init__(self, config: Config) -> None:
        self._fds = Segment.create_fd(), eventfd()
        self._segment = Segment(self._fds[0])
        first: dict[str, object] = {"config": dump(config), "log_level": "ERROR"}
        self._process = FrameProcess(command_for("zhcedge.app.frame"), *self._fds, first)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.fileno(), selectors.EVENT_READ)
        self._selector.register(self._fds[1], selectors.EVENT_READ)
        self.latencies_ms: list[float] = []
        self.is_over = False

    def __enter__(self) -> Frames:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()
        self._selector.close()
        for fd in self._fds:
            os.close(fd)

    def turn(self, timeout_s: float = 0.0) -> None:
        """Read what has come. Raises SystemExit when the frame process fails."""
        ready = {key.fd for key, _ in self._selector.select(timeout_s)}
        if self._fds[1] in ready:
            os.eventfd_read(self._fds[1])
        self.latencies_ms += [
            (record.ready_ns - record.info.read_time_ns) / 1e6
            for record in self._segment.ring.drain()
            if not record.is_end
        ]
        if self._process.fileno() not in ready:
            return
        messages, is_closed = self._process.messages()
        for message in messages:
            if "error" in message:
                raise SystemExit(f"the frame process failed: {message['error']}")
            self.is_over = self.is_over or "report" in message
        if is_closed and not self.is_over:
            raise SystemExit("the frame process has ended")

    def settle(self) -> None:
        """Until it is active, and for two seconds more."""
        deadline_s = time.monotonic() + START_S
        while not self.latencies_ms:
            if time.monotonic() > deadline_s:
                raise SystemExit("no frame came through")
            self.turn(0.1)
        self.block(2.0, None)

    def block(self, seconds: float, flow: Flow | None) -> list[float]:
        """The latencies of so many seconds, ms; with `flow`, events are told as fast as they are taken meanwhile."""
        self.latencies_ms = []
        until_s = time.monotonic() + seconds
        wait: Callable[[], None] = self.turn
        if flow is not None:
            flow.flood_until(until_s, wait)
        while time.monotonic() < until_s:
            self.turn(0.05)
        return self.latencies_ms

    def stop(self) -> None:
        self._process.request_stop()
        deadline_s = time.monotonic() + 60
        while not self.is_over and time.monotonic() < deadline_s:
            self.turn(0.1)

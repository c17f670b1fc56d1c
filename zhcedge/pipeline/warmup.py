"""Runs programs without a source: on one blank picture, to touch every batch size and to time it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Generic

from zhcedge.core.errors import PipelineError
from zhcedge.core.ports import Clock, Device, Fence, FrameSlot
from zhcedge.core.types import B, ImageFormat, ModelFacts
from zhcedge.pipeline.channel import Launcher

log = logging.getLogger(__name__)

_TIMEOUT_S = 60.0  # the first run of an engine may choose its kernels
_ROUNDS = 6  # launches of every launch position while a batch size is timed
_WORTH_IT = 1.02  # a larger batch must be so much faster: it costs latency


class Exerciser(Generic[B]):
    """Owns the blank picture, of the model's own size. Made in the initialising phase, used in warm-up."""

    def __init__(self, device: Device[B], launchers: Sequence[Launcher[B]], model: ModelFacts, clock: Clock) -> None:
        self._launchers, self._clock = tuple(launchers), clock
        arena = device.arena
        *_, height_px, width_px = model.input_shape
        image = ImageFormat(width_px, height_px)
        self._slot = FrameSlot(0, -1, arena.surface(image, "warm-up"), arena.results("warm-up"))
        device.admit(self._slot)

    def touch(self, sizes: Sequence[int]) -> None:
        """Launch every program once. Raises what a stage raises."""
        for size in sizes:
            for launcher in self._launchers:
                self._wait(self._launch(launcher, size))

    def sizes_within(self, sizes: Sequence[int], limit_ms: float) -> tuple[int, ...]:
        """The batch sizes up to the one with most frames a second among those that take no longer than `limit_ms` from
        launch to end with all lanes busy. One size at least."""
        chosen, best_fps = sizes[0], 0.0
        for size in sizes:
            fps, latency_ms = self._measure(size)
            log.info("batch %d: %.1f frames a second, %.1f ms a launch", size, fps, latency_ms)
            if (latency_ms <= limit_ms or size == sizes[0]) and fps > best_fps * _WORTH_IT:
                chosen, best_fps = size, fps
        log.info("batches of up to %d are launched", chosen)
        return tuple(size for size in sizes if size <= chosen)

    def _measure(self, size: int) -> tuple[float, float]:
        """(frames a second, median milliseconds of a launch) with every launch position busy."""
        started_ns = self._clock.monotonic_ns()
        inflight: deque[tuple[Fence, int]] = deque()
        taken_ms = []
        for _ in range(_ROUNDS):
            for launcher in self._launchers:
                if len(inflight) == len(self._launchers):
                    taken_ms.append(self._collect(inflight))
                inflight.append((self._launch(launcher, size), self._clock.monotonic_ns()))
        while inflight:
            taken_ms.append(self._collect(inflight))
        seconds = (self._clock.monotonic_ns() - started_ns) / 1e9
        return _ROUNDS * len(self._launchers) * size / seconds, sorted(taken_ms)[len(taken_ms) // 2]

    def _collect(self, inflight: deque[tuple[Fence, int]]) -> float:
        fence, launched_ns = inflight.popleft()
        self._wait(fence)
        return (self._clock.monotonic_ns() - launched_ns) / 1e6

    def _launch(self, launcher: Launcher[B], size: int) -> Fence:
        return launcher.programs[size].launch((self._slot,) * size)

    def _wait(self, fence: Fence) -> None:
        if not fence.wait(_TIMEOUT_S):
            raise PipelineError(f"no result for {_TIMEOUT_S:.0f} s", where="warm-up")

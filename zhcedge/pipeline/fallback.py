"""A sink with a second choice: taken once, when it opens, and said aloud."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Generic

from zhcedge.core.errors import BackendUnavailableError, PhaseError
from zhcedge.core.ports import FrameSlot, Sink, SourceFacts
from zhcedge.core.types import B, Hop, Payload

log = logging.getLogger(__name__)

MakeSink = Callable[[], Sink[B]]


class FallbackSink(Generic[B]):
    """Implements core.ports.Sink by the first of two sinks, or the second where this machine can't run the first.

    `open` decides, for the whole run; a sink that fails later is not replaced. The log says why the second one was
    taken, and so do the hops that move pixels.

    Args:
        where: the channel and output, for messages.
        first, second: names of the implementations, and what makes them, unopened. BackendUnavailableError of making
            or opening the first one means that it can't run here; every other error is raised on.
    """

    def __init__(self, where: str, first: tuple[str, MakeSink[B]], second: tuple[str, MakeSink[B]]) -> None:
        self._where, self._first, self._second = where, first, second
        self._hook: Callable[[], None] = lambda: None
        self._sink: Sink[B] | None = None
        self._reason = ""

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Those of the sink that was taken. Empty before `open`."""
        hops = self._sink.hops if self._sink is not None else ()
        return tuple(self._explained(hop) for hop in hops) if self._reason else hops

    def _explained(self, hop: Hop) -> Hop:
        return replace(hop, reason=f"{hop.reason}; {self._reason}") if hop.payload is Payload.PIXELS else hop

    def watch_threads(self, hook: Callable[[], None]) -> None:
        self._hook = hook

    def open(self, source: SourceFacts) -> None:
        """Open one of the two. Raises what the second one raises, and what the first one raises for another reason."""
        try:
            self._sink = self._opened(self._first[1], source)
        except BackendUnavailableError as error:
            self._sink = self._opened(self._second[1], source)
            self._reason = f"{self._second[0]} in place of {self._first[0]}: {error.what}"
            log.warning("%s: %s", self._where, self._reason)

    def _opened(self, make: MakeSink[B], source: SourceFacts) -> Sink[B]:
        sink = make()
        sink.watch_threads(self._hook)
        sink.open(source)
        return sink

    def submit(self, slot: FrameSlot[B], give_back: Callable[[FrameSlot[B]], None]) -> bool:
        """As the sink that was taken does. Raises PhaseError before `open`."""
        if self._sink is None:
            raise PhaseError("the sink is not open", where=self._where)
        return self._sink.submit(slot, give_back)

    def close(self, complete: bool) -> None:
        if self._sink is not None:
            self._sink.close(complete)

"""A TCP proxy in front of a broker that treats connections badly on request."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

HOST = "127.0.0.1"
_CHUNK_BYTES = 4096
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST instead of FIN


class Weather(enum.Enum):
    """What happens to connections that begin now."""

    CLEAR = enum.auto()
    REFUSING = enum.auto()  # accepted and reset at once
    STALLED = enum.auto()  # accepted, and nothing is ever forwarded


@dataclass(eq=False)
class _Link:
    """A client's connection and the one to the broker that belongs to it.

    Attributes:
        budget_bytes: towards the broker, until the connection is cut; None for ever.
        is_dead: nothing is forwarded any more, and nothing is closed: half-open.
        is_deaf: what the broker says is thrown away: acknowledgements get lost.
    """

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter | None = None
    budget_bytes: int | None = None
    is_dead: bool = False
    is_deaf: bool = False

    def close(self, is_reset: bool = False) -> None:
        for writer in (self.near, self.far):
            if writer is None or writer.transport.is_closing():
                continue
            if is_reset:
                end: socket.socket = writer.get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
            else:
                writer.close()


@dataclass
class ChaosProxy:
    """Forwards to a port of the loopback, in a thread of its own. The faults may be called by any thread.

    Attributes:
        accepted: connections so far, refused ones included.
    """

    target_port: int
    accepted: int = 0
    port: int = field(init=False)
    _weather: Weather = Weather.CLEAR
    _delay_s: float = 0.0
    _links: set[_Link] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._never = asyncio.Event()  # ours, not the waiting task's own: the collector would end a task that waits so
        listening = socket.create_server((HOST, 0))
        self.port = listening.getsockname()[1]
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=listening))
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos", daemon=True)
        self._thread.start()

    def cut(self, after_bytes: int) -> None:
        """Close every connection once it has carried so many more bytes to the broker: in the middle of a packet."""

        def begin() -> None:
            for link in self._links:
                link.budget_bytes = after_bytes

        self._do(begin)

    def reset(self) -> None:
        """End every connection with RST, whatever is under way."""
        self._do(self._reset_all)

    def stall(self) -> None:
        """From now on nothing comes through; connections of this time stay dead after `heal`."""

        def begin() -> None:
            self._weather = Weather.STALLED
            for link in self._links:
                link.is_dead = True

        self._do(begin)

    def deafen(self) -> None:
        """Lose what the broker answers on the connections of now, so that nothing is acknowledged."""

        def begin() -> None:
            for link in self._links:
                link.is_deaf = True

        self._do(begin)

    def delay(self, seconds: float) -> None:
        """Hold every chunk for so long, in both directions."""
        self._do(lambda: setattr(self, "_delay_s", seconds))

    def refuse(self) -> None:
        """Reset every connection, and those that begin from now on."""

        def begin() -> None:
            self._weather = Weather.REFUSING
            self._reset_all()

        self._do(begin)

    def heal(self) -> None:
        """New connections work again. Half-open and deaf ones stay what they are, until somebody gives them up."""

        def begin() -> None:
            self._weather, self._delay_s = Weather.CLEAR, 0.0

        self._do(begin)

    def close(self) -> None:
        """End everything; a second call does nothing."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        self._reset_all()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _reset_all(self) -> None:
        for link in self._links:
            link.close(is_reset=True)

    def _do(self, action: Callable[[], object]) -> None:
        """Run it in the proxy's thread and wait for it: the fault has begun when the caller goes on."""
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(act)
        if not done.wait(10):
            raise TimeoutError("the proxy does not answer")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer, is_dead=self._weather is Weather.STALLED)
        self._links.add(link)
        try:
            if self._weather is Weather.REFUSING:
                link.close(is_reset=True)
                return
            if link.is_dead:
                await self._never.wait()  # until close() cancels us
            # Also when the broker is gone: the client's connection ends, as behind a real gateway.
            far_reader, link.far = await asyncio.open_connection(HOST, self.target_port)
            await asyncio.gather(
                self._carry(link, reader, link.far, is_upward=True),
                self._carry(link, far_reader, writer, is_upward=False),
            )
        except (OSError, asyncio.CancelledError):
            pass  # one side has gone, or the proxy closes: asyncio 3.11 would print a cancelled server task
        finally:
            link.close()
            self._links.discard(link)

    async def _carry(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_upward: bool
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            if link.is_dead:
                await self._never.wait()
            if link.is_deaf and not is_upward:
                continue
            if is_upward and link.budget_bytes is not None:
                data = data[: link.budget_bytes]
                link.budget_bytes -= len(data)
            writer.write(data)
            with contextlib.suppress(ConnectionError):  # the other direction sees the end as well
                await writer.drain()
            if is_upward and link.budget_bytes == 0:
                break
        link.close()  # FIN to both, after what is written

"""What the control socket is asked for, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zhcedge.app.live_settings import PAUSED
from zhcedge.app.reload import Reloader
from zhcedge.core.addresses import without_password
from zhcedge.core.errors import UsageError, ZhcEdgeError
from zhcedge.core.printing import printable
from zhcedge.publish.commands import AddCamera, Command, LogLevel, RemoveCamera, Sender, Value
from zhcedge.service.control_socket import Client, ControlSocket
from zhcedge.service.log import LEVELS
from zhcedge.service.socket_file import SocketFile

ACTIONS = ("add", "remove", "pause", "resume")
WORDS = ("status", "watch", "channel", "log-level", "reload", "reload-status")


class ControlRequests:
    """Serves the control socket, if there is one. Belongs to the control loop's thread; nothing in it waits.

    Requests:

    - {"do": "status"}: see status_facts;
    - {"do": "watch"}: the same at once and every second, until the client goes;
    - {"do": "channel", "action": "add", "name": ..., "channel": section of the configuration}, with "remove", "pause"
      and "resume" without a section: answered when the frame process has answered;
    - {"do": "log-level", "level": ...}: of both processes, answered likewise;
    - {"do": "reload"}: begin to load the configuration again; answered at once with {"number": ...};
    - {"do": "reload-status"}: see Reloader.facts.

    Args:
        file: the listening socket, which stays its opener's to close too; None serves nothing.
        status: what is known now.
        submit: lets a command wait for its turn.
        reloader: None where nothing can be loaded again.
    """

    def __init__(
        self,
        file: SocketFile | None,
        status: Callable[[], Mapping[str, object]],
        submit: Callable[[Command], None],
        reloader: Reloader | None = None,
    ) -> None:
        self._reloader = reloader
        self._socket = ControlSocket(file, _shown) if file is not None else None
        self._status, self._submit = status, submit

    def fileno(self) -> int:
        """For a selector; -1 without a socket."""
        return self._socket.fileno() if self._socket is not None else -1

    @property
    def is_busy(self) -> bool:
        """There is more to do at once."""
        return self._socket is not None and self._socket.is_busy

    def turn(self) -> None:
        """What every turn of the loop does."""
        if self._socket is not None:
            self._socket.serve(self._handle)
            self._socket.tell_watchers(self._status)

    def close(self) -> None:
        """Hang up; clients that wait for an answer get none. A second call does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _handle(self, request: dict[str, object], client: Client) -> None:
        word = request.get("do")
        if word == "status":
            client.answer(self._status())
        elif word == "watch":
            client.answer(self._status())
            client.watch()
        elif word == "channel":
            self._submit(_channel_command(request, _sender(client)))
        elif word == "log-level":
            level = request.get("level")
            if level not in LEVELS:
                raise UsageError("there is no such log level", fix=f"use one of {', '.join(LEVELS)}")
            self._submit(Command("log-level", value=LogLevel(str(level)), sender=_sender(client)))
        elif word in ("reload", "reload-status"):
            client.answer(_asked_again(self._reloader) if word == "reload" else _facts(self._reloader))
        else:
            raise UsageError("there is no such request", where="do", fix=f"use one of {', '.join(WORDS)}")


def _asked_again(reloader: Reloader | None) -> dict[str, object]:
    if reloader is None:
        raise UsageError("this daemon has no configuration file to load again")
    return {"number": reloader.request()}


def _facts(reloader: Reloader | None) -> dict[str, object]:
    return {} if reloader is None else reloader.facts


def _sender(client: Client) -> Sender:
    def tell(error: ZhcEdgeError | None) -> None:
        if error is None:
            client.answer({})
        else:
            client.fail(error)

    return Sender(tell=tell)


def _channel_command(request: Mapping[str, object], sender: Sender) -> Command:
    action, name, channel = request.get("action"), request.get("name"), request.get("channel")
    if action not in ACTIONS:
        raise UsageError("there is no such action", where="action", fix=f"use one of {', '.join(ACTIONS)}")
    if not isinstance(name, str) or not name:
        raise UsageError("a camera's name is missing", where="name")
    value: Value
    if action == "add":
        if not isinstance(channel, dict):
            raise UsageError('takes a section of the configuration, {"source": {"uri": ...}}', where="channel")
        value = AddCamera(name, channel)
    elif action == "remove":
        value = RemoveCamera(name)
    else:
        return Command(PAUSED, name, action == "pause", sender)
    return Command("cameras", value=value, sender=sender)


def _shown(text: str) -> str:
    """Errors may hold the words of other libraries, of a camera, or an address with a password."""
    return printable(without_password(text))

"""A broker for the demo: mosquitto where it is installed, else amqtt; on loopback, at a free port, gone afterwards."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zhcedge.app.children import last_line, running
from zhcedge.core.errors import BackendUnavailableError, BrokerError

HOST = "127.0.0.1"
KINDS = ("auto", "mosquitto", "amqtt")

_START_S = 15.0
_PORT_TRIES = 3
# Debian puts mosquitto into a folder that is not on an ordinary user's PATH.
_MORE_PATH = ("/usr/sbin", "/usr/local/sbin")

# "user root": a mosquitto that root starts would change its user, and Linux then forgets to end it with us. Anybody
# else's mosquitto ignores the line.
_MOSQUITTO_CONFIG = """\
user root
listener {port} {host}
allow_anonymous true
persistence false
max_queued_messages 10000
log_dest stderr
"""

# Two plug-ins only: the others log every packet or publish statistics.
_AMQTT_CONFIG = """\
listeners:
  default:
    type: tcp
    bind: {host}:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


@dataclass(frozen=True)
class DemoBroker:
    """A broker that accepts connections: its program's name and its TCP port on loopback."""

    name: str
    port: int


@contextlib.contextmanager
def open_broker(kind: str, folder: Path) -> Iterator[DemoBroker]:
    """Run a broker while the context lasts. Its configuration and log go into `folder`.

    Args:
        kind: one of KINDS; "auto" prefers mosquitto.

    Raises:
        BackendUnavailableError: the wanted broker is not installed.
        BrokerError: it is, and does not come up.
    """
    name, program = _choose(kind)
    problem = ""
    for _ in range(_PORT_TRIES):
        port = _free_port()
        config = folder / "broker.conf"
        config.write_text((_MOSQUITTO_CONFIG if name == "mosquitto" else _AMQTT_CONFIG).format(host=HOST, port=port))
        log = folder / "broker.log"
        with running([*program, "-c", str(config)], log, orphan_signal=signal.SIGKILL, grace_s=2.0) as child:
            if _accepts(child, port):
                yield DemoBroker(name, port)
                return
            problem = last_line(log)
    raise BrokerError(
        f"the demo's broker {name} does not come up: {problem or 'no answer'}",
        fix=f"try --broker {'amqtt' if name == 'mosquitto' else 'mosquitto'}",
    )


def _choose(kind: str) -> tuple[str, list[str]]:
    """The broker's name and the start of its command line."""
    if kind in ("auto", "mosquitto"):
        mosquitto = shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), *_MORE_PATH]))
        if mosquitto:
            return "mosquitto", [mosquitto]
        if kind == "mosquitto":
            raise BackendUnavailableError("mosquitto is not installed", fix="apt-get install mosquitto, as root")
    if importlib.util.find_spec("amqtt") is None:
        raise BackendUnavailableError(
            "there is neither mosquitto nor amqtt", fix=f"{sys.executable} -m pip install 'zhcedge[demo]'"
        )
    return "amqtt", [sys.executable, "-m", "amqtt.scripts.broker_script"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts(child: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the broker accepts a connection; False when it ended or the time is over."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and child.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return child.poll() is None
    return False

"""A process of its own that opens every camera until its first picture, as the daemon would.

What a camera sends may hang or crash what decodes it: then this process ends, and not the doctor. The configuration
comes on standard input, because it holds passwords. One JSON line a camera goes to standard output, in any order.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import cast

from zhcedge.app.channels import ChannelFactory
from zhcedge.app.interpreter import leave
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.load import parse_dump
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.leases import no_rewarm
from zhcedge.core.ports import Device
from zhcedge.profiles import PROFILES
from zhcedge.service.clock import SystemClock

_writing = threading.Lock()


def main(text: str) -> None:
    """Open them all at once; returns when the last one has answered or given up."""
    config = parse_dump(text)
    # By the processor, whatever the profile: what is looked at is the way to the camera.
    no_device = cast("Device[object]", None)
    factory = ChannelFactory(PROFILES["cpu"], no_device, (), Path(), SystemClock(), no_rewarm, is_patient=False)
    threads = [
        threading.Thread(target=_say, args=(factory, number, name, channel), name=f"camera {name}")
        for number, (name, channel) in enumerate(config.channels.items())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _say(factory: ChannelFactory, number: int, name: str, channel: ChannelConfig) -> None:
    answer = {"name": name, **_opened(factory, number, name, channel)}
    with _writing:
        print(json.dumps(answer), flush=True)


def _opened(factory: ChannelFactory, number: int, name: str, channel: ChannelConfig) -> dict[str, str]:
    try:
        source = factory.parts(number, name, channel.model_copy(update={"sinks": ()})).source
        try:
            return {"found": source.open().description}
        finally:
            source.close()
    except ZhcEdgeError as error:
        return {"what": error.what, "fix": error.fix}
    except Exception as error:  # noqa: BLE001 - one camera must not hide the others
        return {"what": f"{type(error).__name__}: {error}", "fix": "report this as a bug"}


if __name__ == "__main__":
    main(sys.stdin.read())
    leave(0)

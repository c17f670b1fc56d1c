"""An RTSP server for tests that takes what is pushed to it: GStreamer's own. Run by Debian's python3, not by ours.

Prints "ready PORT" once it takes `/push`. Each connection's H.264 goes to OUTPUT as an MPEG transport stream. It ends
when its standard input does, so it can't outlive a test.
"""

from __future__ import annotations

import argparse

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import Gst, GstRtspServer  # noqa: E402
from rtsp_server import add_server_arguments, serve  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    add_server_arguments(parser)
    return parser.parse_args()


def main() -> None:
    Gst.init(None)
    options = arguments()
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_transport_mode(GstRtspServer.RTSPTransportMode.RECORD)
    depacketised = "rtph264depay name=depay0 ! h264parse config-interval=-1"
    factory.set_launch(f'( {depacketised} ! mpegtsmux ! filesink location="{options.output}" )')
    serve(factory, "/push", options)


if __name__ == "__main__":
    main()

"""An RTSP camera for tests: GStreamer's own server plays a file at its own pace. Run by Debian's python3, not by ours.

Prints "ready PORT" once it serves `/cam`. It ends when its standard input does, so it can't outlive a test.
"""

from __future__ import annotations

import argparse
import threading

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import Gio, GLib, Gst, GstRtspServer  # noqa: E402


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", default="0")
    parser.add_argument("--user")
    parser.add_argument("--password", default="")
    parser.add_argument("--digest", action="store_true", help="digest authentication instead of basic")
    parser.add_argument("--certificate", help="PEM file with certificate and key: serve RTSP over TLS")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("stream", help="an MPEG transport stream with H.264")
    add_server_arguments(parser)
    parser.add_argument("--loss", type=float, default=0.0, help="share of RTP packets that never leave")
    return parser.parse_args()


def authentication(options: argparse.Namespace) -> GstRtspServer.RTSPAuth | None:
    if not (options.user or options.certificate):
        return None
    auth = GstRtspServer.RTSPAuth()
    if options.certificate:
        auth.set_tls_certificate(Gio.TlsCertificate.new_from_file(options.certificate))
    role = GstRtspServer.RTSPToken()
    role.set_string("media.factory.role", "viewer")
    if not options.user:
        auth.set_default_token(role)
    elif options.digest:
        auth.set_supported_methods(2)  # GST_RTSP_AUTH_DIGEST
        auth.add_digest(options.user, options.password, role)
    else:
        auth.add_basic(GstRtspServer.RTSPAuth.make_basic(options.user, options.password), role)
    return auth


def serve(factory: GstRtspServer.RTSPMediaFactory, path: str, options: argparse.Namespace) -> None:
    """Offer the factory's media at `path`, say "ready PORT", and go on until the standard input ends."""
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service(options.port)
    auth = authentication(options)
    if auth is not None:
        server.set_auth(auth)
        permissions = GstRtspServer.RTSPPermissions()
        permissions.add_permission_for_role("viewer", "media.factory.access", True)
        permissions.add_permission_for_role("viewer", "media.factory.construct", True)
        factory.set_permissions(permissions)
    server.get_mount_points().add_factory(path, factory)
    if not server.attach(None):
        raise SystemExit("the port is taken")
    print(f"ready {server.get_bound_port()}", flush=True)
    main_loop = GLib.MainLoop()

    def end_with_parent() -> None:
        input_ = open(0, "rb")  # noqa: SIM115
        while input_.read(1):
            pass
        main_loop.quit()

    threading.Thread(target=end_with_parent, daemon=True).start()
    main_loop.run()


def main() -> None:
    Gst.init(None)
    options = arguments()
    factory = GstRtspServer.RTSPMediaFactory()
    payloader = "rtph264pay name=pay0 pt=96 config-interval=-1"
    if options.loss:
        payloader = f"rtph264pay pt=96 config-interval=-1 ! identity name=pay0 drop-probability={options.loss}"
    factory.set_launch(f'( filesrc location="{options.stream}" ! tsdemux ! h264parse ! {payloader} )')
    factory.set_shared(False)
    serve(factory, "/cam", options)


if __name__ == "__main__":
    main()

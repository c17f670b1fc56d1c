"""A live stream without an RTSP server: MPEG-TS over HTTP, at its own pace and without a length."""

from __future__ import annotations

import http.server
import threading
import time
from pathlib import Path

HOST = "127.0.0.1"
TS_PACKET_BYTES = 188


class LiveServer:
    """Sends a transport stream from its start to everyone who connects. A context manager.

    Attributes:
        is_cut: ends every connection, and takes no new one, while set.
    """

    def __init__(self, stream: Path, seconds: float) -> None:
        self.is_cut = threading.Event()
        data = stream.read_bytes()
        piece_bytes = max(len(data) // TS_PACKET_BYTES // 100, 1) * TS_PACKET_BYTES
        pause_s = seconds * piece_bytes / len(data)
        is_cut = self.is_cut

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

            def do_GET(self) -> None:
                if is_cut.is_set():
                    self.send_error(503)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "video/mp2t")
                self.end_headers()
                for start in range(0, len(data), piece_bytes):
                    if is_cut.is_set():
                        return
                    self.wfile.write(data[start : start + piece_bytes])
                    time.sleep(pause_s)

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self.address = f"http://{HOST}:{self._server.server_address[1]}/live.ts"

    def __enter__(self) -> LiveServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_cut.set()
        self._server.shutdown()
        self._server.server_close()

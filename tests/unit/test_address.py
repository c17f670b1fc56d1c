"""Credentials reach FFmpeg whole and nobody else."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zhcedge.core.errors import MediaError, ZhcEdgeError
from zhcedge.core.requests import SourceOptions, SourceRequest
from zhcedge.media.address import is_live_address, with_credentials
from zhcedge.media.connection import ffmpeg_options
from zhcedge.media.live import LiveFeed
from zhcedge.service.clock import SystemClock

LETTERS = st.characters(exclude_categories=("Cs", "Cc"))
SECRETS = st.text(LETTERS, min_size=1, max_size=5)  # FFmpeg takes 127 bytes, percent-encoded


@given(SECRETS, SECRETS)
def test_given_credentials_come_back_out_of_the_url_as_they_were(user: str, password: str) -> None:
    url = with_credentials("rtsp://other:login@cam.local:8554/a%20b?c=d", user, password, "gate")
    parts = urlsplit(url)
    assert (unquote(parts.username or ""), unquote(parts.password or "")) == (user, password)
    assert (parts.hostname, parts.port, parts.path, parts.query) == ("cam.local", 8554, "/a%20b", "c=d")
    assert url.isascii()
    assert not set(url) & set(' "<>\\^`{|}')


@given(SECRETS, SECRETS)
def test_no_message_holds_the_credentials(user: str, password: str) -> None:
    assume(password not in "gate: rtsp://localhost:1/cam is no address of a stream")
    options = SourceOptions(username=user, password=f"<{password}>", connect_timeout_s=1.0)
    feed = LiveFeed(SourceRequest(0, "gate", "rtsp://localhost:1/cam", False, False, SystemClock(), options))
    with pytest.raises(ZhcEdgeError) as caught:
        feed.open()
    told = [str(caught.value), repr(caught.value), feed.where, repr(feed.status), repr(options), *feed.warnings]
    assert not any(f"<{password}>" in text for text in told)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("rtsp://host/a", "rtsp://host/a"),
        ("rtsp://user@host/a", "rtsp://user@host/a"),
        ("rtsp://user:a%40b@host/a", "rtsp://user:a%40b@host/a"),
        ("rtsp://user:a@b@host/a", "rtsp://user:a%40b@host/a"),
        ("rtsp://user:@host/a", "rtsp://user:@host/a"),
    ],
)
def test_a_login_inside_the_address_is_kept(uri: str, url: str) -> None:
    assert with_credentials(uri, None, None, "gate") == url


@pytest.mark.parametrize(
    "uri",
    [
        "rtsp://",
        "rtsp:///path",
        "rtsp://host:port/a",
        "rtsp://user:p/ss@host/a",
        "rtsp://[::1/a",
        "rtsp://user:2024#a@host/a",
    ],
)
def test_what_is_no_address_is_refused(uri: str) -> None:
    with pytest.raises(MediaError, match="no address"):
        with_credentials(uri, None, None, "gate")


def test_credentials_that_ffmpeg_would_cut_off_are_refused() -> None:
    with pytest.raises(MediaError, match="too long") as caught:
        with_credentials("rtsp://host/a", "user", "ä" * 30, "gate")
    assert "ä" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "is_live"),
    [
        ("RTSP://host/a", True),
        ("https://host/a.mp4", True),
        ("v4l2:/dev/video0", True),
        ("file:///a.mp4", False),
        ("udp://host:1", False),
        ("a/rtsp://b", False),
        ("clip.mp4", False),
    ],
)
def test_which_addresses_are_live(uri: str, is_live: bool) -> None:
    assert is_live_address(uri) is is_live


def test_a_stream_may_open_no_local_file_and_tls_is_checked_by_default() -> None:
    for scheme in ("rtsp", "rtsps", "http", "https"):
        chosen = ffmpeg_options(f"{scheme}://host/a", SourceOptions())
        assert not {"file", "data", "concat", "subfile"} & set(chosen["protocol_whitelist"].split(","))
        assert chosen.get("tls_verify") == ("1" if scheme in ("rtsps", "https") else None)
    chosen = ffmpeg_options("rtsps://host/a", SourceOptions(ca_file=Path("ca.pem"), verify_tls=False, transport="udp"))
    assert (chosen["ca_file"], chosen["tls_verify"], chosen["rtsp_transport"]) == ("ca.pem", "0", "udp")

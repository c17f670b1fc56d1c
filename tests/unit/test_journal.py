"""Log records become entries of the journal's native protocol; a real datagram socket takes them apart again."""

from __future__ import annotations

import array
import logging
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.core.message_ids import MessageId, tagged
from zhcedge.service.journal import JournalHandler, entry, is_our_stderr
from zhcedge.service.log import BURST, INTERVAL_S, RateLimit


def fields_of(data: bytes) -> dict[str, str]:
    """What journald makes of an entry: journal_file_append_entry's way through the text."""
    found: dict[str, str] = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack("<Q", data[:8])
            value, data = data[8 : 8 + length], data[8 + length :]
            assert data[:1] == b"\n"
            data = data[1:]
        assert re.fullmatch(rb"[A-Z][A-Z0-9_]{0,63}", name)
        found[name.decode()] = value.decode()
    return found


class Journal:
    """A socket where the journal's would be."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.socket.settimeout(10)

    def entry(self) -> dict[str, str]:
        data, extra, _, _ = self.socket.recvmsg(1 << 20, 64)
        for level, kind, numbers in extra:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            (file,) = array.array("i", numbers[:4])
            with os.fdopen(file, "rb") as stream:
                data = os.pread(stream.fileno(), 1 << 27, 0)
        return fields_of(data)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "socket")
    yield made
    made.socket.close()


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def logger(journal: Journal) -> Iterator[logging.Logger]:
    made = logging.Logger("zhcedge.test")
    made.addHandler(JournalHandler("frame", Kept(), journal.address))
    yield made
    for handler in made.handlers:
        handler.close()


def test_an_entry_has_what_an_operator_looks_for(journal: Journal, logger: logging.Logger) -> None:
    logger.warning("channel %s is down", "gate", extra=tagged(MessageId.CAMERA, camera="gate", state="down"))
    found = journal.entry()
    assert found["MESSAGE"] == "channel gate is down"
    assert found["PRIORITY"] == "4"
    assert (found["SYSLOG_IDENTIFIER"], found["LOGGER"], found["ZHC_PROCESS"]) == ("zhc-edge", "zhcedge.test", "frame")
    assert (found["ZHC_CAMERA"], found["ZHC_STATE"]) == ("gate", "down")
    assert found["MESSAGE_ID"] == MessageId.CAMERA.value
    assert found["CODE_FILE"] == __file__
    assert found["CODE_FUNC"] == "test_an_entry_has_what_an_operator_looks_for"


def test_lines_and_tracebacks_stay_one_entry(journal: Journal, logger: logging.Logger) -> None:
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        logger.exception("first\nsecond=x")
    found = journal.entry()
    assert found["MESSAGE"].startswith("first\nsecond=x\nTraceback")
    assert found["PRIORITY"] == "3"


def test_what_is_too_large_for_a_datagram_comes_as_a_file(journal: Journal, logger: logging.Logger) -> None:
    logger.info("x" * 5_000_000)
    assert len(journal.entry()["MESSAGE"]) == 5_000_000


def test_what_the_journal_does_not_take_goes_to_the_other_handler(journal: Journal, logger: logging.Logger) -> None:
    journal.socket.close()
    logger.info("still here")
    handler = logger.handlers[0]
    assert isinstance(handler, JournalHandler)
    assert isinstance(handler._other, Kept)
    assert handler._other.messages == ["still here"]


def test_a_journal_that_comes_back_with_another_socket_is_found(journal: Journal, logger: logging.Logger) -> None:
    journal.socket.close()
    Path(journal.address).unlink()
    logger.info("lost to the other handler")
    again = Journal(Path(journal.address))
    for text in ("small", "x" * 5_000_000):
        logger.info(text)
        assert again.entry()["MESSAGE"] == text
    again.socket.close()


@given(st.dictionaries(st.from_regex(r"\A[A-Z][A-Z0-9_]{0,20}\Z"), st.text(), min_size=1, max_size=5))
def test_any_text_comes_back(fields: dict[str, str]) -> None:
    assert fields_of(entry(fields)) == fields


def test_only_a_stderr_that_is_the_journals_counts() -> None:
    found = os.fstat(2)
    assert is_our_stderr({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
    assert not is_our_stderr({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
    assert not is_our_stderr({})


def test_ids_are_128_bits_and_different() -> None:
    values = [one.value for one in MessageId]
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in values)
    assert len(set(values)) == len(values)


def test_one_place_that_repeats_itself_leaves_room_for_the_others_and_says_so() -> None:
    now_s = [0.0]
    kept, logger = Kept(), logging.Logger("zhcedge.test")
    kept.addFilter(RateLimit(lambda: now_s[0]))
    logger.addHandler(kept)

    def repeat(number: int) -> None:
        logger.info("again %d", number)

    for number in range(3 * BURST):
        repeat(number)
    assert kept.messages == [f"again {number}" for number in range(BURST)]
    logger.info("another place")
    assert kept.messages[-1] == "another place"
    now_s[0] = INTERVAL_S
    repeat(7)
    assert kept.messages[-1] == f"again 7 ({2 * BURST} more like this were left out)"
    repeat(8)
    assert kept.messages[-1] == "again 8"


def test_a_record_that_can_not_be_formatted_does_not_reach_its_caller(
    journal: Journal, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, limit = [0.0], RateLimit(lambda: now_s[0])
    logger.handlers[0].addFilter(limit)
    monkeypatch.setattr(logging, "raiseExceptions", False)  # it would only print the traceback

    def log_badly() -> None:
        logger.info("%d of them", "text")

    for _ in range(2 * BURST):
        log_badly()
    now_s[0] = INTERVAL_S
    log_badly()
    logger.info("still here")
    assert journal.entry()["MESSAGE"] == "still here"

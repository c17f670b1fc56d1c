"""What the log says of channels: every change, nothing twice a minute, and in the end what is true."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zhcedge.app.channel_log import INTERVAL_S, ChannelLog
from zhcedge.pipeline.channel import ChannelState

UP, DOWN = ChannelState.UP, ChannelState.DOWN


def test_a_camera_that_stays_away_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = ChannelLog()
    for second in range(0, 600, 4):
        log.note("a", DOWN, "refused", second)
        log.tick(second + 1)
    assert caplog.messages == ["channel a is down: refused"]


def test_another_reason_is_said_at_once_and_two_by_turns_once_a_minute_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = ChannelLog()
    for second in range(0, 180, 4):
        log.note("a", DOWN, "refused" if second % 8 else "silent", second)
    assert caplog.messages[:2] == ["channel a is down: silent", "channel a is down: refused"]
    assert len(caplog.messages) == 6


def test_what_had_to_wait_is_said_if_it_is_still_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log = ChannelLog()
    for second, state in enumerate((UP, DOWN, UP, DOWN, UP)):
        log.note("a", state, "" if state is UP else "refused", float(second))
    assert caplog.messages == ["channel a is up", "channel a is down: refused"]
    log.tick(30.0)
    assert len(caplog.messages) == 2
    log.tick(INTERVAL_S)
    assert caplog.messages[2:] == ["channel a is up"]


@given(st.lists(st.tuples(st.sampled_from([UP, DOWN]), st.sampled_from(["x", "y"]), st.floats(0, 30)), min_size=1))
def test_nothing_is_said_twice_a_minute_and_the_last_word_is_true(news: list[tuple[ChannelState, str, float]]) -> None:
    said: list[tuple[float, str]] = []
    now_s = 0.0

    class Recording(ChannelLog):
        def _say(self, channel: str, now_s: float) -> None:
            before = dict(self._said.get(channel, {}))
            super()._say(channel, now_s)
            said.extend((at_s, str(one)) for one, at_s in self._said[channel].items() if before.get(one) != at_s)

    log = Recording()
    for state, reason, pause_s in news:
        now_s += pause_s
        log.note("a", state, reason, now_s)
    log.tick(now_s + INTERVAL_S)
    assert said[-1][1] == str(news[-1][:2])
    for text in {text for _, text in said}:
        times = [at_s for at_s, one in said if one == text]
        assert all(later - earlier >= INTERVAL_S for earlier, later in itertools.pairwise(times))

"""What the log says of channels that come and go: every change, but the same news at most once a minute."""

from __future__ import annotations

import logging

from zhcedge.core.message_ids import MessageId, tagged
from zhcedge.pipeline.channel import ChannelState

log = logging.getLogger(__name__)

INTERVAL_S = 60.0

_News = tuple[ChannelState, str]


class ChannelLog:
    """Logs a channel's state when it, or its reason, is another one than before. Belongs to the control loop's thread.

    A camera that comes and goes has the same few news again and again: news that were logged within the last minute
    wait until the minute is over, and are left out when others have come by then.
    """

    def __init__(self) -> None:
        self._now: dict[str, _News] = {}  # by channel
        self._said: dict[str, dict[_News, float]] = {}  # by channel: when it was logged, the last one last
        self._unsaid: set[str] = set()

    def note(self, channel: str, state: ChannelState, reason: str, now_s: float) -> None:
        """The channel is in this state, perhaps since long. `now_s` is monotonic."""
        self._now[channel] = (state, reason)
        self._say(channel, now_s)

    def tick(self, now_s: float) -> None:
        """Log what had to wait. Cheap; called now and then."""
        for channel in tuple(self._unsaid):
            self._say(channel, now_s)

    def _say(self, channel: str, now_s: float) -> None:
        news, said = self._now[channel], self._said.setdefault(channel, {})
        self._unsaid.discard(channel)
        if said and next(reversed(said)) == news:
            return
        if now_s - said.get(news, -INTERVAL_S) < INTERVAL_S:
            self._unsaid.add(channel)
            return
        for old in [one for one, at_s in said.items() if now_s - at_s >= INTERVAL_S]:
            del said[old]
        said[news] = now_s
        state, reason = news
        is_fault = state in (ChannelState.DOWN, ChannelState.FAILED)
        text = f"channel {channel} is {state}" + (f": {reason}" if reason else "")
        fields = tagged(MessageId.CAMERA, camera=channel, state=str(state))
        log.log(logging.WARNING if is_fault else logging.INFO, "%s", text, extra=fields)

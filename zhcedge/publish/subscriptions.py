"""Which subscriptions a broker has granted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions


class Subscriptions:
    """Matches a broker's answers with what was asked for. Any thread.

    Args:
        on_answer: a topic filter, and whether it was granted. The network's thread or that of `ask`.
    """

    def __init__(self, client: paho.Client, on_answer: Callable[[str, bool], None]) -> None:
        self._client, self._on_answer = client, on_answer
        self._lock = threading.Lock()  # never held while paho is called
        self._asked: dict[int, tuple[str, ...]] = {}  # by packet identifier
        self._early: dict[int, Sequence[ReasonCode]] = {}  # answered before `ask` could note it

    def ask(self, filters: Sequence[str], *, as_published: bool = False) -> None:
        """Subscribe with QoS 1; nothing happens for none, and without a connection.

        Args:
            as_published: messages keep the retain flag of their sender, not only those that the broker has kept. MQTT 5
                only; 3.1.1 has no such thing.
        """
        if not filters:
            return
        if as_published and self._client.protocol == paho.MQTTv5:
            options = SubscribeOptions(qos=1, retainAsPublished=True)
            _, packet = self._client.subscribe([(one, options) for one in filters])
        else:
            _, packet = self._client.subscribe([(one, 1) for one in filters])
        if packet is None:
            return
        with self._lock:
            grants = self._early.pop(packet, None)
            if grants is None:
                self._asked[packet] = tuple(filters)
        if grants is not None:
            self._tell(filters, grants)

    def answered(self, packet: int, grants: Sequence[ReasonCode]) -> None:
        """The broker's answer."""
        with self._lock:
            filters = self._asked.pop(packet, None)
            if filters is None:
                self._early[packet] = grants
        if filters is not None:
            self._tell(filters, grants)

    def _tell(self, filters: Sequence[str], grants: Sequence[ReasonCode]) -> None:
        for one, grant in zip(filters, grants, strict=False):
            self._on_answer(one, not grant.is_failure)

"""Fifty devices whose broker restarts do not come back together. `tools/soak fleet` has a thousand of them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.contract.brokers import find_mosquitto
from tests.contract.fleet import Restart, Wait, faults, plot, restart

pytestmark = pytest.mark.slow  # processes, servers and sockets: minutes in all

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")

EVEN = [index / 50 for index in range(50)]


def drawn(shares: list[float], bound_s: float = 1.0) -> Restart:
    return Restart(50, 2.0, [Wait(share * bound_s, bound_s) for share in shares], [share + 0.1 for share in shares])


@needs_mosquitto
def test_fifty_devices_draw_their_waits_evenly_and_all_come_back(tmp_path: Path) -> None:
    # A fifth of the default waits, so that nobody waits for long: the draws are the same but for this factor.
    seen = restart(tmp_path, 50, away_s=1.5, first_s=0.2, most_s=24.0)
    assert faults(seen) == []
    assert len(seen.back_s) == 50
    assert len({wait.drawn_s for wait in seen.waits}) == len(seen.waits)
    assert len({wait.bound_s for wait in seen.waits}) > 2  # the broker was away for several tries


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        pytest.param([0.5] * 50, "not spread", id="all the same"),
        pytest.param([0.5 + share / 2 for share in EVEN], "not spread", id="half a jitter"),
        pytest.param([share / 10 for share in EVEN], "not spread", id="all at once"),
        pytest.param(EVEN[:30], "30 of 50", id="some did not begin at the shortest"),
    ],
)
def test_waits_that_bring_devices_together_are_recognised(shares: list[float], words: str) -> None:
    assert faults(drawn(EVEN)) == []
    assert words in " ".join(faults(drawn(shares)))


def test_a_jump_of_the_bound_is_recognised() -> None:
    seen = drawn(EVEN)
    seen.waits += drawn(EVEN, 8.0).waits
    assert "double" in " ".join(faults(seen))


def test_the_plot_is_a_picture_with_a_bar_for_each_slice() -> None:
    picture = ElementTree.fromstring(plot(drawn(EVEN)))
    name = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{name}rect")) == 41
    assert len(str(picture.find(f"{name}polyline").get("points")).split()) == 50  # type: ignore[union-attr]

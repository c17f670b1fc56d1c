"""Thirty wrong configurations for one running daemon: each is refused with its place, and nothing else happens."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.system.test_control_socket import site
from tests.system.test_run import children_of
from tests.unit.test_config_mutations import cuts, mutations
from zhcedge.app.check import check

pytestmark = pytest.mark.slow

COUNT = 30
SEED = 20261201


def test_thirty_wrong_configurations_change_nothing(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        good = here.config.read_text()
        wrong = [(what, text) for what, text in (*mutations(good), *cuts(good)) if is_wrong(tmp_path, text)]
        chosen = random.Random(SEED).sample(wrong, COUNT)
        process, since, events = children_of(here.process.pid)[0], here.camera("gate")["since"], here.status()
        for what, text in chosen:
            here.config.write_text(text)
            done = here.command("reload", "--wait")
            assert done.returncode == 78, f"{what}: {done.stdout}{done.stderr}"
            assert re.search(rf"{re.escape(str(here.config))}:\d+:\d+: ", done.stderr), f"{what}: {done.stderr}"
            assert "Traceback" not in done.stderr, what
        assert here.status()["phase"] == "active"
        assert here.status()["boot_id"] == events["boot_id"]
        assert (children_of(here.process.pid)[0], here.camera("gate")["since"]) == (process, since)
        here.config.write_text(good)
        assert here.command("reload", "--wait").returncode == 0
    assert "Traceback" not in here.log.read_text()


def is_wrong(folder: Path, text: str) -> bool:
    """By the daemon's own checks, a real daemon's being slower; those of a camera that is not there are none."""
    path = folder / "mutated.yaml"
    path.write_text(text)
    return bool(check(path, (), {}).problems)

"""A daemon that can't start leaves nothing behind in its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.leftovers import nothing_left
from zhcedge.app.control import ControlLoop
from zhcedge.config.schema import Config
from zhcedge.core.errors import StoreError
from zhcedge.models.bundle import load_bundle
from zhcedge.service.clock import SystemClock


def test_an_outbox_that_cannot_be_opened_leaves_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    outbox = {"dir": str(tmp_path), "memory_dir": str(tmp_path / "absent")}
    config = Config.model_validate({"channels": {"a": {"source": {"uri": "clip:walkers"}}}, "outbox": outbox})
    bundle = load_bundle(config.model.bundle)
    with nothing_left():
        for _ in range(3):
            with pytest.raises(StoreError, match="memory_dir"):
                ControlLoop(config, bundle, SystemClock(), "INFO")

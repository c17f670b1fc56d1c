"""What the doctor finds of the configuration, and of the model, cameras and brokers that it names."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from zhcedge.app.channels import check_address, source_options
from zhcedge.app.check import check, load_configuration
from zhcedge.app.findings import Finding
from zhcedge.app.mqtt_test import check_brokers
from zhcedge.app.status import daemon_status
from zhcedge.backends.registry import source_factory
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.schema import Config
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.ports import Device
from zhcedge.core.requests import SourceRequest
from zhcedge.models.bundle import load_bundle
from zhcedge.profiles import PROFILES
from zhcedge.service.clock import SystemClock


def look_at_configuration(path: Path, environ: Mapping[str, str]) -> tuple[Config | None, list[Finding]]:
    """The configuration where it can be read, and what is wrong with it."""
    report = check(path, (), environ)
    faults = [Finding("configuration", "bad", str(replace(one, fix="")), one.fix) for one in report.problems]
    try:
        config = load_configuration(path, (), environ).config
    except ZhcEdgeError:
        return None, faults or [Finding("configuration", "bad", f"{path} can't be used", "see `zhc-edge check`")]
    well = Finding("configuration", "ok", f"{path}: {len(config.channels)} cameras, profile {config.profile}")
    return config, faults or [well]


def look_at_model(config: Config) -> Iterator[Finding]:
    """The bundle, with every hash of its files."""
    bundle = load_bundle(config.model.bundle)
    yield Finding("model", "ok", f"{bundle.facts.name}, {len(bundle.facts.labels)} labels, {bundle.facts.sha256[:12]}")


def look_at_cameras(config: Config, path: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Each one opened until its first picture comes; where a daemon runs, it is asked instead: many cameras give one
    stream only."""
    running = daemon_status(path, environ)
    if running is not None:
        cameras = cast("Mapping[str, Mapping[str, object]]", running.get("cameras") or {})
        for name, facts in cameras.items():
            text = f"{facts['state']}, {facts['fps_in']} frames a second"
            text += f": {facts['reason']}" if facts["reason"] else ""
            is_well = facts["state"] in ("up", "paused")
            yield Finding(f"camera {name}", "ok" if is_well else "bad", text, "" if is_well else "see the reason")
        return
    results: dict[str, Finding] = {}
    threads = [
        threading.Thread(target=lambda name=name, one=one: results.update({name: _opened(name, one)}), daemon=True)
        for name, one in config.channels.items()
    ]
    for thread in threads:
        thread.start()
    for name, thread in zip(config.channels, threads, strict=True):
        thread.join()
        yield results[name]


def _opened(name: str, channel: ChannelConfig) -> Finding:
    part, source = f"camera {name}", channel.source
    try:
        options = source_options(source, f"channels.{name}.source.password_file")
        if source.kind == "stream":
            check_address(source.uri, options, f"channels.{name}.source.uri")
        elif source.kind != "pattern":
            return Finding(part, "ok", f"a {source.kind}")  # the configuration's check has read its header
        request = SourceRequest(0, name, source.uri, False, False, SystemClock(), options)
        # By the processor, whatever the profile: what is looked at here is the way to the camera.
        opened = source_factory(PROFILES["cpu"].sources[source.kind])(request, cast("Device[object]", None))
        try:
            facts = opened.open()
        finally:
            opened.close()
    except ZhcEdgeError as error:
        return Finding(part, "bad", error.what, error.fix)
    except Exception as error:  # noqa: BLE001  one camera must not hide the others
        return Finding(part, "bad", f"{type(error).__name__}: {error}", "report this as a bug")
    return Finding(part, "ok", facts.description)


def look_at_brokers(config: Config) -> Iterator[Finding]:
    """The daemon's way to each broker, step by step."""
    if not config.mqtt.enabled:
        yield Finding("broker", "skipped", "mqtt.enabled is false")
        return
    for report in check_brokers(config):
        broken = next((step for step in report.steps if step.result == "failed"), None)
        if broken is not None:
            yield Finding("broker", "bad", f"{report.address}, {broken.name}: {broken.text}", broken.fix)
        else:
            said = [f"{step.name}: {step.text}" for step in report.steps if step.name in ("tls", "mqtt") and step.text]
            yield Finding("broker", "ok", "; ".join([report.address, *said]))

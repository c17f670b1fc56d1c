"""What the doctor finds of the configuration, and of the model, cameras and brokers that it names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from zhcedge.app.doctor_commands import ask
from zhcedge.app.findings import Finding
from zhcedge.app.interpreter import command_for
from zhcedge.app.mqtt_test import check_brokers
from zhcedge.app.status import daemon_status
from zhcedge.config.load import dump, load
from zhcedge.config.problems import Place, Problem
from zhcedge.config.schema import Config
from zhcedge.core.errors import ZhcEdgeError
from zhcedge.models.bundle import load_bundle
from zhcedge.profiles import PROFILES

CHECK_S = 90.0
"""A check loads the profile's libraries and hashes the model."""

START_S = 30.0
"""What a process takes to load its libraries, on a small board that is busy."""


def readable_configuration(path: Path, environ: Mapping[str, str]) -> Config | None:
    """What the file says, whether or not what it names is there; None with errors, or without a file."""
    try:
        return load(path, (), environ, profiles=PROFILES).config
    except ZhcEdgeError:
        return None


def look_at_configuration(path: Path, environ: Mapping[str, str], config: Config | None) -> Iterator[Finding]:
    """What `zhc-edge check` says, in a process of its own: it loads the libraries of the profile."""
    document = checked(path, environ)
    problems = document.get("problems")
    if not isinstance(problems, list):
        yield Finding("configuration", "bad", f"{path}: {document['why']}", "see `zhc-edge check`")
        return
    for one in problems:
        problem = Problem(Place(**one["place"]), one["key"], one["what"], one["allowed"])
        yield Finding("configuration", "bad", str(problem), one["fix"])
    if config is not None and not problems:
        yield Finding("configuration", "ok", f"{path}: {len(config.channels)} cameras, profile {config.profile}")


def checked(path: Path, environ: Mapping[str, str]) -> Mapping[str, object]:
    """The document of `zhc-edge check --json`; with "why" only where there is none. Blocks."""
    command = (*command_for("zhcedge"), "check", "-c", str(path), "--json")
    outcome = ask(command, CHECK_S, environ={**os.environ, **environ})
    try:
        document = json.loads(outcome.out)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {"why": f"the check did not end well: {outcome.why}"}


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
    # What a camera sends may crash what decodes it, and opening one may hang.
    outcome = ask(command_for("zhcedge.app.doctor_cameras"), cameras_limit_s(config), given=dump(config))
    answers = dict(_answers(outcome.out))
    for name in config.channels:
        answer = answers.get(name, {"what": f"nothing came of it: {outcome.why}", "fix": "check camera and network"})
        if "found" in answer:
            yield Finding(f"camera {name}", "ok", str(answer["found"]))
        else:
            yield Finding(f"camera {name}", "bad", str(answer["what"]), str(answer["fix"]))


def cameras_limit_s(config: Config) -> float:
    """For all of them: they are opened at once, each within its own limit."""
    return START_S + max(channel.source.connect_timeout_s for channel in config.channels.values())


def _answers(out: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    for line in out.splitlines():
        try:
            answer = json.loads(line)
        except ValueError:
            continue  # a library has said something
        if isinstance(answer, dict) and "name" in answer:
            yield str(answer["name"]), answer


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

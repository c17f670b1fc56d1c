"""Use case `doctor --report`: everything that helps whoever is asked for help, in one archive, without secrets.

What goes in is text, and goes through one gate, line by line (doctor_redaction.py).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from zhcedge import __version__
from zhcedge.app.doctor_commands import ask
from zhcedge.app.doctor_config import checked, readable_configuration
from zhcedge.app.doctor_secrets import redactor_of
from zhcedge.app.findings import Finding
from zhcedge.app.interpreter import command_for
from zhcedge.app.kernel_log import kernel_lines
from zhcedge.app.status import daemon_status
from zhcedge.config.schema import Config
from zhcedge.core.addresses import without_passwords
from zhcedge.core.errors import DaemonAwayError
from zhcedge.core.files import check_folder, write_whole

_LINES = "500"
_OF_COMPUTER = ("system", "driver", "zhc-edge", "packages", "libraries")
_COMMAND_S = 30.0
_FRAMES_A_SECOND = 25
"""Frames of the audit for each second that was given to it: it ends by frames, not by time."""


def check_place(file: Path) -> None:
    """See that the archive could be written, before the minutes are spent. Raises OutputError."""
    check_folder(file, "the report")


def write_report(
    file: Path,
    findings: Sequence[Finding],
    screen: str,
    path: Path,
    environ: Mapping[str, str],
    *,
    seconds: int,
    is_loaded_anyway: bool = False,
    shows_hosts: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Write the archive, for its owner alone. Blocks for `seconds` and some more.

    Args:
        seconds: of benchmark and audit; 0 for none.
        is_loaded_anyway: also beside a running daemon, which they slow down.
        say: told what is being done.

    Raises OutputError.
    """
    config = readable_configuration(path, environ)
    ours = [finding.text for finding in findings if finding.part in _OF_COMPUTER]
    redactor = redactor_of(path, environ, ours, shows_hosts=shows_hosts)
    running: object
    try:
        running = daemon_status(path, environ)
    except DaemonAwayError as error:  # it is there and can't be asked
        running = error.what
    parts: dict[str, object] = {
        "doctor.json": [asdict(finding) for finding in findings],
        "configuration.json": _configuration(path, environ),
        "status.json": without_passwords(running),
    }
    texts = {"doctor.txt": screen, "journal.txt": _journal("-u", "zhc-edge"), "kernel.txt": "\n".join(kernel_lines())}
    parts["crashes.json"] = _crashes(environ)
    if running is not None and not is_loaded_anyway:
        parts["load.json"] = "not run: the daemon is running; --with-load runs it all the same"
    elif seconds and config is not None:
        say(f"measuring for about {seconds} s")
        parts["bench.json"] = _bench(config.profile, seconds / 2)
        parts["audit.json"] = _audit(config, seconds / 2)
    parts["summary.json"] = _summary(findings, config, parts)
    members = {name: redactor.clean(text) for name, text in texts.items()}
    members |= {name: json.dumps(redactor.clean_value(value), indent=2, default=str) for name, value in parts.items()}
    write_whole(file, _archive(members), "the report", mode=0o600)


def _configuration(path: Path, environ: Mapping[str, str]) -> object:
    """Every value with its origin, or what is wrong with them."""
    document = checked(path, environ)
    values = document.get("values")
    if not isinstance(values, dict):
        return document
    return {key: [one["value"], one["origin"]] for key, one in values.items()}


def _crashes(environ: Mapping[str, str]) -> object:
    """In a process of its own: what writes those reports loads the libraries of the frame path."""
    command = (*command_for("zhcedge"), "crashes", "--json")
    outcome = ask(command, _COMMAND_S, environ={**os.environ, **environ})
    try:
        reports: object = json.loads(outcome.out)
    except ValueError:
        return outcome.why
    return reports


def _summary(findings: Sequence[Finding], config: Config | None, parts: Mapping[str, object]) -> dict[str, object]:
    """What a table of hardware wants to know."""
    bench, audit = parts.get("bench.json"), parts.get("audit.json")
    facts = {finding.part: finding.text for finding in findings if finding.state == "note"}
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "version": __version__,
        **{name: facts.get(name) for name in ("board", "system", "driver", "gpu", "packages", "libraries")},
        "profile": config.profile if config is not None else None,
        "bad": [finding.part for finding in findings if finding.state == "bad"],
        "pipeline_fps": bench.get("pipeline_fps") if isinstance(bench, dict) else None,
        "engine_fps": bench.get("engine_fps") if isinstance(bench, dict) else None,
        "verdict": audit.get("verdict") if isinstance(audit, dict) else None,
    }


def _archive(members: Mapping[str, str]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, text in members.items():
            data = text.encode("utf-8", "backslashreplace")
            about = tarfile.TarInfo(f"zhc-edge-report/{name}")
            about.size, about.mtime, about.mode = len(data), int(time.time()), 0o600
            archive.addfile(about, io.BytesIO(data))
    return gzip.compress(plain.getvalue())


def _journal(*arguments: str) -> str:
    return _output(("journalctl", "--no-pager", "--no-hostname", "-o", "short-iso", "-n", _LINES, *arguments))


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command[0]}: {error}"
    return done.stdout + done.stderr


# -- load ----------------------------------------------------------------------------------------------------------
def _bench(profile: str, seconds: float) -> object:
    frames = max(10, int(seconds * _FRAMES_A_SECOND / 8))  # four blocks of each kind in a group
    arguments = ("bench", "--profile", profile, "--groups", "1", "--frames", str(frames), "--no-latency")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        return _measured((*arguments, "--json", str(file)), seconds, file)


def _audit(config: Config, seconds: float) -> object:
    """Of the configured profile and model with the bundled clip: a camera that is away would have it wait for ever."""
    frames = max(10, int(seconds * _FRAMES_A_SECOND))
    channels = {"clip": {"source": {"uri": "clip:walkers", "loop": True}}}
    model = {"bundle": str(config.model.bundle_path or config.model.bundle)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audit.yaml"
        file.write_text(json.dumps({"profile": config.profile, "model": model, "channels": channels}))
        return _measured(("audit", "-c", str(file), "--frames", str(frames), "--json"), seconds)


def _measured(arguments: Sequence[str], seconds: float, file: Path | None = None) -> object:
    """The JSON that a command of ours prints, or writes into `file`; or why there is none. A process of its own, of low
    priority: a GPU may take it along."""
    nice = ("nice", "-n", "19") if shutil.which("nice") else ()
    outcome = ask((*nice, *command_for("zhcedge"), *arguments), 120 + 10 * seconds)
    try:
        value: object = json.loads(outcome.out if file is None else file.read_text())
    except (OSError, ValueError):
        return f"{arguments[0]} did not end well: {outcome.why}"
    return value

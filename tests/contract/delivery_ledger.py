"""What delivery promises, checked from outside: what a publisher says it has created against what a receiver heard.

The publisher writes a line before it appends a batch ("I am about to") and one after it ("append has returned"), so
that a SIGKILL at any moment leaves no doubt about what was created. The lines go to a file, which outlives the process.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[str, int]
"""outbox_id and seq: what receivers tell repeated messages by."""

Content = tuple[str, str, int]
"""type, "<boot_id>/<event id>" and frame sequence: which event a message is about."""


_JUMP = 1_000_000
"""Steps between two seqs above this are an outbox's reserve of ids, skipped at a start that follows a kill."""


class TruthWriter:
    """The publisher's side. One write a line, so that what is there is whole or recognisably torn."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._batches = 0
        os.write(self._fd, b"\n")  # ends a line that was torn by the last kill

    def intend(self, boot_id: str, outbox_id: str, rows: Sequence[tuple[int, Content]]) -> str:
        """Say what will be appended; returns the batch's name for `done`."""
        self._batches += 1
        batch = f"{boot_id}-{self._batches}"
        self._write({"batch": batch, "outbox": outbox_id, "rows": rows})
        return batch

    def done(self, batch: str) -> None:
        """The outbox has returned from every append of the batch."""
        self._write({"done": batch})

    def _write(self, line: object) -> None:
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")


@dataclass
class Truth:
    """What the publisher created.

    Attributes:
        batches: rows by the batch's name, in order.
        done: batches that were certainly kept.
    """

    batches: dict[str, dict[Key, Content]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> Truth:
        truth = cls()
        for line in path.read_bytes().splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue  # torn by a kill: what it would have said was not begun, or not finished
            if "done" in said:
                truth.done.add(said["done"])
            else:
                rows = {(said["outbox"], seq): (kind, name, frame) for seq, (kind, name, frame) in said["rows"]}
                truth.batches[said["batch"]] = rows
        return truth

    @property
    def created(self) -> dict[Key, Content]:
        """Every message that certainly exists."""
        return {key: content for batch in self.done for key, content in self.batches[batch].items()}


@dataclass
class Findings:
    """The comparison's outcome.

    Attributes:
        violations: broken promises, a line each; empty is what one wants.
        heard: different messages; `duplicates` came on top.
        gaps: seqs that nobody heard, by outbox.
        jumps: how often the seqs of an outbox went on behind a block of reserved ones, as after a kill.
    """

    violations: list[str]
    heard: int
    duplicates: int
    crash_ends: int
    gaps: dict[str, list[int]]
    jumps: dict[str, int]


def compare(truth: Truth, arrivals: Iterable[bytes]) -> Findings:
    """Check payloads of the `events` topic, in order of arrival, against the truth."""
    first: dict[Key, dict[str, Any]] = {}
    duplicates = 0
    violations: list[str] = []
    for payload in arrivals:
        said = json.loads(payload)
        key = said["outbox_id"], said["seq"]
        if key not in first:
            first[key] = said
            continue
        duplicates += 1
        if _content(said) != _content(first[key]):
            violations.append(f"{key}: two messages under one seq, {_content(first[key])} and {_content(said)}")
    violations += _against_truth(truth, first)
    violations += broken_lives(first.values())
    crash_ends = sum(said["end_reason"] == "crash" for said in first.values())
    return Findings(violations, len(first), duplicates, crash_ends, *_gaps(first))


def broken_lives(messages: Iterable[dict[str, Any]]) -> list[str]:
    """Every event is new, update..., end, in order of seq. `messages` are different ones in order of arrival."""
    violations = []
    lives: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for said in messages:
        lives[f"{said['boot_id']}/{said['after']['id']}"].append(said)
    for name, life in lives.items():
        kinds = [said["type"] for said in life]
        if kinds[0] != "new" or kinds[-1] != "end" or set(kinds[1:-1]) - {"update"}:
            violations.append(f"{name}: {kinds}")
        # An outbox that replaced a broken one counts anew: order is by seq within each of them.
        seqs: dict[str, list[int]] = defaultdict(list)
        for said in life:
            seqs[said["outbox_id"]].append(said["seq"])
        violations += [f"{name}: out of order {each}" for each in seqs.values() if each != sorted(each)]
    return violations


def _against_truth(truth: Truth, first: dict[Key, dict[str, Any]]) -> list[str]:
    violations = [f"{key}: lost, {content}" for key, content in truth.created.items() if key not in first]
    known: set[Key] = set()
    for name, rows in truth.batches.items():
        arrived = {key for key, content in rows.items() if key in first and _content(first[key]) == content}
        known |= arrived
        wrong = rows.keys() & first.keys() - arrived
        if name in truth.done:
            violations += [f"{key}: {_content(first[key])} instead of {rows[key]}" for key in sorted(wrong)]
        elif arrived and arrived != rows.keys():
            violations.append(f"batch {name} was kept in part: {sorted(arrived)} of {sorted(rows)}")
    for key, said in first.items():
        if key not in known and said["end_reason"] != "crash":
            violations.append(f"{key}: never created, {_content(said)}")
    return violations


def _gaps(first: Iterable[Key]) -> tuple[dict[str, list[int]], dict[str, int]]:
    gaps: dict[str, list[int]] = {}
    jumps: Counter[str] = Counter()
    last: dict[str, int] = {}
    for outbox_id, seq in sorted(first):
        before = last.get(outbox_id, 0)
        last[outbox_id] = seq
        if seq - before > _JUMP:
            jumps[outbox_id] += 1
        else:
            gaps.setdefault(outbox_id, []).extend(range(before + 1, seq))
    return gaps, dict(jumps)


def _content(said: dict[str, Any]) -> Content:
    return said["type"], f"{said['boot_id']}/{said['after']['id']}", said["after"]["frame_sequence"]

"""One frame's journey as a self-contained HTML page: stages as bars on a time axis, copies as arrows with bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from zhcedge.app.link import LinkReport
from zhcedge.core.types import Hop, MemoryDomain, Payload
from zhcedge.pipeline.plan import RunReport
from zhcedge.pipeline.recorder import Recorder, Spans

_LEFT_PX, _WIDTH_PX, _ROW_PX, _TOP_PX = 150, 760, 26, 34
_COLORS = {
    Payload.PIXELS: "#c2410c",
    Payload.TENSOR: "#7c3aed",
    Payload.BITSTREAM: "#0369a1",
    Payload.RESULTS: "#15803d",
    Payload.PARAMETERS: "#64748b",
}
_DOMAINS = tuple(MemoryDomain)  # left to right: the host's side, then the GPU's; storage last
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>One frame's journey</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 960px; color: #111; }}
h2 {{ font-size: 1.1em; margin: 1.6em 0 .4em; }} text {{ font: 12px system-ui, sans-serif; }}
.pass {{ color: #15803d; }} .fail {{ color: #b91c1c; }} .unproved {{ color: #b45309; }}
.axis {{ stroke: #ddd; }} .bar {{ fill: #2563eb; }}
</style>
<h1>One frame's journey</h1>
<p>{summary}</p>
<p>Ledger: <b class="{verdict}">{verdict}</b>. {ledger}</p>
<h2>Time</h2>
<p>Milliseconds from asking the source for the frame. Frames overlap: while this one is in a stage, others are in the
next. A gap is waiting.</p>
{bars}
<h2>Copies of the frame</h2>
<p>{legend}</p>
{arrows}
{link}
</html>
"""


@dataclass(frozen=True)
class _Bar:
    """What happened to the frame in one place: times in milliseconds from the first one."""

    name: str
    track: str
    start_ms: float
    end_ms: float


def page(report: RunReport, recorder: Recorder, link: LinkReport | None = None) -> str:
    """The page for the frame of median latency among those whose stages were timed. No scripts, no other files.

    Args:
        link: what crossed between host and device meanwhile; None leaves the section out.
    """
    bars = _journey(recorder)
    ledger = report.ledger
    summary = (
        f"{report.frames} frames in {report.seconds:.2f} s, {report.fps:.1f} a second. Shown is the frame of median "
        f"latency: {max((bar.end_ms for bar in bars), default=0.0):.2f} ms from read to results."
    )
    legend = ", ".join(f'<span style="color:{color}">{payload.value}</span>' for payload, color in _COLORS.items())
    return _PAGE.format(
        summary=escape(summary),
        verdict=ledger.verdict.value,
        ledger=escape(ledger.text()),
        bars=_draw_bars(bars),
        legend=legend,
        arrows=_draw_arrows(ledger.hops),
        link=_describe(link),
    )


def _describe(link: LinkReport | None) -> str:
    lines = link.lines() if link is not None else []
    return "\n".join(["<h2>The link</h2>", *(f"<p>{escape(line.strip())}</p>" for line in lines)]) if lines else ""


def _journey(recorder: Recorder) -> list[_Bar]:
    spans, names, tracks = recorder.spans(), recorder.names(), recorder.tracks()
    chosen = _median_frame(spans, names)
    if chosen is None:
        return []
    channel, sequence = chosen
    # A warm-up pass counts its frames from 0 as well: the newest pass comes last.
    rows = spans[(spans["channel"] == channel) & (spans["sequence"] == sequence)]
    first = int(np.flatnonzero(rows["name"] == names.index("read"))[-1])
    rows = rows[first:]
    start_ns = int(rows["start_ns"][0])
    return [
        _Bar(
            names[int(row["name"])],
            tracks[int(row["track"])],
            (int(row["start_ns"]) - start_ns) / 1e6,
            (int(row["end_ns"]) - start_ns) / 1e6,
        )
        for row in rows
    ]


def _median_frame(spans: Spans, names: Sequence[str]) -> tuple[int, int] | None:
    """Channel and sequence. Stages are booked under the first frame of a batch: only those have a whole journey."""
    needed = {name: names.index(name) for name in ("read", "collect") if name in names}
    timed = names.index("engine") if "engine" in names else names.index("run") if "run" in names else -1
    if len(needed) < 2 or timed < 0:
        return None
    begun: dict[tuple[int, int], int] = {}
    with_stages: set[tuple[int, int]] = set()
    latencies: list[tuple[int, tuple[int, int]]] = []
    for span in spans:
        key, kind = (int(span["channel"]), int(span["sequence"])), int(span["name"])
        if kind == needed["read"]:
            begun[key] = int(span["start_ns"])
        elif kind == timed:
            with_stages.add(key)
        elif kind == needed["collect"] and key in begun and key in with_stages:
            latencies.append((int(span["end_ns"]) - begun[key], key))
    return sorted(latencies)[len(latencies) // 2][1] if latencies else None


def _draw_bars(bars: Sequence[_Bar]) -> str:
    if not bars:
        return "<p>No frame was recorded from end to end.</p>"
    whole_ms = max(bar.end_ms for bar in bars)
    scale = _WIDTH_PX / whole_ms
    height = _TOP_PX + _ROW_PX * len(bars)
    parts = [f'<svg width="{_LEFT_PX + _WIDTH_PX + 10}" height="{height}" role="img">']
    for tick in range(11):
        x, value = _LEFT_PX + _WIDTH_PX * tick / 10, whole_ms * tick / 10
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{height}"/>')
        parts.append(f'<text x="{x:.1f}" y="14" text-anchor="middle">{value:.2f}</text>')
    for index, bar in enumerate(bars):
        y = _TOP_PX + index * _ROW_PX
        x, width = _LEFT_PX + bar.start_ms * scale, max((bar.end_ms - bar.start_ms) * scale, 1.0)
        label = f"{bar.name}: {bar.end_ms - bar.start_ms:.3f} ms on {bar.track}"
        parts.append(f'<text x="0" y="{y + 14}">{escape(bar.name)}</text>')
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_ROW_PX - 8}">'
            f"<title>{escape(label)}</title></rect>"
        )
        inside = x + width + 160 > _LEFT_PX + _WIDTH_PX
        at, anchor = (x - 4, "end") if inside else (x + width + 4, "start")
        parts.append(
            f'<text x="{at:.1f}" y="{y + 14}" text-anchor="{anchor}">{bar.end_ms - bar.start_ms:.3f} ms</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _draw_arrows(hops: Sequence[Hop]) -> str:
    used = [domain for domain in _DOMAINS if any(domain in (hop.source, hop.destination) for hop in hops)]
    columns = {
        domain: _LEFT_PX + 60 + index * (_WIDTH_PX - 240) / max(len(used) - 1, 1) for index, domain in enumerate(used)
    }
    height = _TOP_PX + _ROW_PX * len(hops) + 10
    parts = [f'<svg width="{_LEFT_PX + _WIDTH_PX + 60}" height="{height}" role="img">']
    for domain, x in columns.items():
        parts.append(f'<text x="{x:.1f}" y="14" text-anchor="middle">{domain.value}</text>')
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{height}"/>')
    for index, hop in enumerate(hops):
        parts.append(_arrow(hop, columns[hop.source], columns[hop.destination], _TOP_PX + index * _ROW_PX + 10))
    return "\n".join([*parts, "</svg>"])


def _arrow(hop: Hop, start: float, end: float, y: float) -> str:
    color = _COLORS[hop.payload]
    title = escape(
        f"{hop.name}: {hop.bytes_per_frame:,} bytes a frame by {hop.agent.value}; {hop.provenance.value}; {hop.reason}"
    )
    if start == end:  # inside one memory: a loop to the right of its line
        path = f"M{start:.1f},{y - 6} h34 v10 h-30"
        tip, back, text_x = end + 4, 6, start + 42
        y_tip = y + 4
    else:
        sign = 1 if end > start else -1
        path = f"M{start:.1f},{y} H{end - 6 * sign:.1f}"
        tip, back, text_x, y_tip = end, -6 * sign, max(start, end) + 8, y
    head = f"M{tip:.1f},{y_tip} l{back},-4 v8 z"
    return (
        f'<g><title>{title}</title><text x="0" y="{y + 4}">{escape(hop.name)}</text>'
        f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/><path d="{head}" fill="{color}"/>'
        f'<text x="{text_x:.1f}" y="{y + 4}" fill="{color}">{hop.bytes_per_frame:,} B, {hop.agent.value}, '
        f"{hop.provenance.value}</text></g>"
    )

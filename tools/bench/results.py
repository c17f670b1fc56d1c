"""From the raw blocks of tools/bench/gpu to results.json and its readable form. Pure: needs no GPU.

Every value comes from a block that was run; what could not be measured is null, and `reasons` says why.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from zhcedge.app.bench_statistics import interval

CHANNELS = (1, 4, 16)
KEYS = [
    "date",
    "commit",
    "gpu",
    "driver",
    "command",
    "clip",
    "model",
    "engine",
    "precision",
    "sink",
    "lanes",
    "pipeline_fps_1",
    "pipeline_fps_4",
    "pipeline_fps_16",
    "engine_fps",
    "nvdec_fps_1",
    "nvdec_fps_4",
    "nvdec_fps_16",
    "pipeline_to_limit_1",
    "pipeline_to_limit_4",
    "pipeline_to_limit_16",
    "null_engine_to_nvdec",
    "overhead_us_per_frame",
    "stage_share",
    "d2h_bytes_per_frame",
    "parameter_bytes_per_frame",
    "allocs_per_10k",
    "frees_per_10k",
    "device_syncs_per_10k",
    "canaries_seen",
    "canaries_planted",
    "p99_over_p50",
    "runner_cpu_ms_per_frame",
    "decoder_cpu_ms_per_frame",
    "process_cpu_ms_per_frame",
    "vs_ultralytics",
]

TARGETS: dict[str, tuple[str, float]] = {
    "pipeline_to_limit_1": (">=", 0.97),
    "pipeline_to_limit_4": (">=", 0.98),
    "pipeline_to_limit_16": (">=", 0.98),
    "null_engine_to_nvdec": (">=", 0.95),
    "stage_share": ("<=", 0.025),
    "d2h_bytes_per_frame": ("<=", 0),
    "parameter_bytes_per_frame": ("<=", 1024),
    "allocs_per_10k": ("<=", 0),
    "frees_per_10k": ("<=", 0),
    "device_syncs_per_10k": ("<=", 0),
    "p99_over_p50": ("<=", 1.15),
    "runner_cpu_ms_per_frame": ("<=", 0.10),
    "decoder_cpu_ms_per_frame": ("<=", 0.18),
    "vs_ultralytics": (">=", 3.1),
}
"""Key -> what its value should be. runner_cpu_ms_per_frame is runner and collector together."""

SMALL_STAGES = ("letterbox", "detect", "overlay")


def mean_fps(raw: dict[str, Any], kind: str) -> float:
    return statistics.fmean(block["fps"] for block in raw["blocks"][kind])


def summarise(raw: dict[str, Any]) -> dict[str, Any]:
    """Every key of KEYS, then what stands beside them: targets, intervals, rows for each sink, raw samples."""
    values: dict[str, Any] = dict.fromkeys(KEYS)
    reasons: dict[str, str] = {}
    _facts(raw, values)
    intervals: dict[str, list[float]] = {}
    for name in (
        "engine",
        *(f"{kind}_{k}" for kind in ("pipeline", "encode", "null", "unwatched", "nvdec") for k in CHANNELS),
    ):
        blocks = raw["blocks"].get(name)
        if blocks:
            found = interval([block["fps"] for block in blocks])
            key = "engine_fps" if name == "engine" else name.replace("_", "_fps_")
            intervals[key] = [found.mean, found.low, found.high]
            if key in values:
                values[key] = found.mean
    rows = {kind: _row(intervals, kind) for kind in ("pipeline", "encode")}
    for count in CHANNELS:
        values[f"pipeline_to_limit_{count}"] = rows["pipeline"].get(f"to_limit_{count}")
    values["null_engine_to_nvdec"] = _ratio(intervals, "null_fps_1", "nvdec_fps_1")
    if values["pipeline_fps_1"] and values["engine_fps"]:
        values["overhead_us_per_frame"] = 1e6 / values["pipeline_fps_1"] - 1e6 / values["engine_fps"]
    _stages(raw, values)
    _audit(raw, values)
    _cpu(raw, values)
    paced = {
        f"{setting}, {count} channels": raw["blocks"].get(f"{name}_{count}", [{}])[0]
        for name, setting in (
            ("paced", f"batch {raw.get('batch')}"),
            ("paced_single", "batch 1"),
            ("paced_even", "one lane, batch 1"),
        )
        for count in CHANNELS
    }
    ratios = {count: block["latency_ms"][2] / block["latency_ms"][0] for count, block in paced.items() if block}
    values["p99_over_p50"] = ratios.get("one lane, batch 1, 1 channels")
    if raw.get("ultralytics"):
        best = max(raw["ultralytics"], key=lambda row: row["fps"])
        values["vs_ultralytics"] = values["pipeline_fps_1"] / best["fps"] if values["pipeline_fps_1"] else None
    for key in KEYS:
        if values[key] is None:
            reasons[key] = "; ".join(raw["problems"]) or "not run"
    return {
        **values,
        "reasons": reasons,
        "batch": raw.get("batch"),
        "rows": rows,
        "intervals_95": intervals,
        "null_engine_to_nvdec_by_channels": {k: _ratio(intervals, f"null_fps_{k}", f"nvdec_fps_{k}") for k in CHANNELS},
        "null_engine_unwatched_to_nvdec": _ratio(intervals, "unwatched_fps_1", "nvdec_fps_1"),
        "p99_over_p50_by_batch_and_channels": ratios,
        "paced_latency_ms_p50_p90_p99": {count: block["latency_ms"] for count, block in paced.items() if block},
        "engine_sweep": [{key: row[key] for key in ("batch", "fps")} for row in raw.get("sweep", [])],
        "ultralytics": raw.get("ultralytics"),
        "memory": raw.get("memory"),
        "kernels": raw.get("kernels"),
        "audit_verdict": raw.get("audit", {}).get("ledger", {}).get("text"),
        "audit_memory": raw.get("audit", {}).get("memory"),
        **_growth(raw.get("audit", {}).get("memory")),
        "reruns": raw.get("reruns", []),
        "problems": raw["problems"],
        "samples": {
            name: [
                {key: block[key] for key in ("fps", "cpu_ms_per_frame", "spans_us") if key in block} for block in blocks
            ]
            for name, blocks in raw["blocks"].items()
        },
    }


def _facts(raw: dict[str, Any], values: dict[str, Any]) -> None:
    facts = raw.get("facts", {})
    for key in ("date", "commit", "gpu", "driver", "command"):
        values[key] = facts.get(key)
    inputs = raw.get("inputs", {})
    values["clip"], values["model"] = inputs.get("clip"), inputs.get("model")
    ready = raw["ready"].get("pipeline", {})
    values["engine"] = ready.get("engine")
    values["precision"], values["sink"], values["lanes"] = "fp16", "none", 2


def _row(intervals: dict[str, list[float]], kind: str) -> dict[str, float]:
    """Frames a second with each number of channels, and their share of the limit."""
    row: dict[str, float] = {}
    for count in CHANNELS:
        fps, nvdec = intervals.get(f"{kind}_fps_{count}"), intervals.get(f"nvdec_fps_{count}")
        if fps:
            row[f"fps_{count}"] = fps[0]
        if fps and nvdec and "engine_fps" in intervals:
            limit = min(intervals["engine_fps"][0], nvdec[0])
            row[f"to_limit_{count}"] = fps[0] / limit
            row[f"limit_is_nvdec_{count}"] = float(nvdec[0] < intervals["engine_fps"][0])
    return row


def _ratio(intervals: dict[str, list[float]], upper: str, lower: str) -> float | None:
    return intervals[upper][0] / intervals[lower][0] if upper in intervals and lower in intervals else None


def _stages(raw: dict[str, Any], values: dict[str, Any]) -> None:
    name = f"stages_{raw.get('batch')}"
    if name in raw["blocks"]:
        spans = raw["blocks"][name][0]["spans_us"]
        values["stage_share"] = sum(spans.get(stage, 0.0) for stage in SMALL_STAGES) / spans["engine"]


def _audit(raw: dict[str, Any], values: dict[str, Any]) -> None:
    audit = raw.get("audit")
    if audit is None:
        return
    ledger = audit["ledger"]
    counts, frames = ledger["violations"], ledger["frames"]

    def per_10k(*kinds: str) -> float:
        return sum(counts[kind] for kind in kinds) * 10_000 / frames

    values["allocs_per_10k"] = per_10k("device allocation", "async allocation", "pinned allocation")
    values["frees_per_10k"] = per_10k("device free")
    values["device_syncs_per_10k"] = per_10k("device synchronisation")
    # Copies of pixels to the host would be counted here; the bytes of those that there were.
    leaks = [row for row in audit["calls"] if row["kind"] in ("copy of a frame to the host", "2-D copy to the host")]
    values["d2h_bytes_per_frame"] = sum(row["size_bytes"] for row in leaks) / frames
    values["parameter_bytes_per_frame"] = sum(
        hop["bytes_per_frame"] for hop in ledger["hops"] if hop["payload"] == "parameters"
    )
    values["canaries_seen"], values["canaries_planted"] = ledger["canaries_seen"], ledger["canaries_planted"]


def _cpu(raw: dict[str, Any], values: dict[str, Any]) -> None:
    """Of the run with one channel: means over its blocks."""
    shares = [block["cpu_ms_per_frame"] for block in raw["blocks"].get("pipeline_1", [])]
    if shares:
        mean = {role: statistics.fmean(share[role] for share in shares) for role in shares[0]}
        values["runner_cpu_ms_per_frame"] = mean["runner"] + mean["collector"]
        values["decoder_cpu_ms_per_frame"] = mean["reader"]
        values["process_cpu_ms_per_frame"] = mean["process"]


def as_markdown(values: dict[str, Any]) -> str:
    """RESULTS.md: made from results.json and nothing else."""
    lines = [
        "# Figures of the rtx profile",
        "",
        f"Made by `{values['command']}` on {values['date']}, {values['gpu']}, driver {values['driver']}, commit "
        f"{values['commit'] or 'unknown'}; {values['model']} ({values['precision']}, batch up to {values['batch']}, "
        f"{values['lanes']} lanes, {values['engine']}); {values['clip']}, 1920x1080 H.264. This file is made from "
        "results.json, which also holds every block.",
        "",
        "| figure | value | target | met |",
        "| --- | --- | --- | --- |",
    ]
    for key, (sign, target) in TARGETS.items():
        value = values[key]
        is_met = value is not None and (value >= target if sign == ">=" else value <= target)
        shown = "not measured: " + values["reasons"][key] if value is None else _number(value)
        lines.append(f"| {key} | {shown} | {sign} {target} | {'yes' if is_met else 'no'} |")
    lines += [
        "",
        "p99_over_p50 is that of the setting for even latency (one lane, batch 1); the table below has others.",
    ]
    lines += ["", "| frames a second | mean | 95 % interval |", "| --- | --- | --- |"]
    lines += [
        f"| {name} | {_number(mean)} | {_number(low)} to {_number(high)} |"
        for name, (mean, low, high) in values["intervals_95"].items()
    ]
    lines += [
        "",
        "| sink | channels | frames a second | share of the limit | the limit is |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, name in (("pipeline", "none"), ("encode", "Motion JPEG by nvJPEG")):
        row = values["rows"][kind]
        for count in CHANNELS:
            if f"to_limit_{count}" in row:
                limit = "NVDEC" if row[f"limit_is_nvdec_{count}"] else "the engine"
                share = _number(row[f"to_limit_{count}"])
                lines.append(f"| {name} | {count} | {_number(row[f'fps_{count}'])} | {share} | {limit} |")
    lines += ["", "Everything else: overhead "]
    lines[-1] += f"{_number(values['overhead_us_per_frame'])} us a frame, "
    lines[-1] += f"process {_number(values['process_cpu_ms_per_frame'])} ms of CPU a frame, "
    lines[-1] += f"canaries {values['canaries_seen']} of {values['canaries_planted']} seen."
    lines += ["", f"The audit's ledger: {values['audit_verdict'] or 'not measured'}."]
    lines += [
        "",
        f"Memory that its 10,000 frames took: {_number(values['rss_growth_mib_per_10k'])} MiB of the process, "
        f"{_number(values['gpu_growth_mib_per_10k'])} MiB of the GPU.",
    ]
    if values["paced_latency_ms_p50_p90_p99"]:
        lines += ["", "| evenly spaced at 80 % of full speed | p50 ms | p90 ms | p99 ms | p99 / p50 |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        for name, (p50, p90, p99) in values["paced_latency_ms_p50_p90_p99"].items():
            lines.append(f"| {name} | {_number(p50)} | {_number(p90)} | {_number(p99)} | {_number(p99 / p50)} |")
    if values["kernels"]:
        lines += _kernel_table(values["kernels"])
    for rerun in values["reruns"]:
        lines += ["", f"Steps {', '.join(rerun['steps'])} were run again by themselves, commit {rerun['commit']}."]
    if values["problems"]:
        lines += ["", "What went wrong in this run:", *(f"- {problem}" for problem in values["problems"])]
    return "\n".join(lines) + "\n"


def _growth(memory: list[dict[str, Any]] | None) -> dict[str, Any]:
    """How much memory the audit's active frames took: of the process, and on the GPU."""
    first, last = memory or ({}, {})
    if not memory:
        return {"rss_growth_mib_per_10k": None, "gpu_growth_mib_per_10k": None}
    return {
        "rss_growth_mib_per_10k": last["rss_mib"] - first["rss_mib"],
        "gpu_growth_mib_per_10k": (last["gpu_used_bytes"] - first["gpu_used_bytes"]) / 2**20,
    }


def _kernel_table(kernels: dict[str, Any]) -> list[str]:
    """Every kernel by itself, as tools/bench/kernels.py measured it."""
    bandwidth = kernels["bandwidth_bytes_per_s"]
    shown = f"{_number(bandwidth / 1e9)} GB/s" if bandwidth else "unknown"
    lines = [
        "",
        f"Kernels by themselves, a batch at a time; the memory's bandwidth is {shown}:",
        "",
        "| kernel | batch | bytes read and written | us | us a frame | us at the bandwidth | ratio "
        "| within 3x or < 8 us | the same a frame |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in kernels["kernels"]:
        least, ratio = (_number(row[key]) if row[key] is not None else "-" for key in ("us_at_bandwidth", "ratio"))
        verdicts = ["yes" if row[key] else "no" for key in ("is_met", "is_met_a_frame")]
        if row["batch"] == 1:
            verdicts[1] = "-"
        times = (_number(row["us"]), _number(row["us_a_frame"]))
        cells = (row["kernel"], row["batch"], row["bytes"], *times, least, ratio, *verdicts)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [f"- not measured: {name}" for name in kernels["not_measured"]]
    return lines


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "not measured"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"

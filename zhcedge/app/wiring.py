"""From a configuration to an initialised Plan: the only place that chooses backends."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from zhcedge.backends.registry import DEVICES, ENGINES, SINKS, SOURCES
from zhcedge.config.schema import ChannelConfig, Config, SourceConfig
from zhcedge.core.errors import BackendUnavailableError, ConfigError, PhaseError, SourceMissingError
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.ports import (
    Clock,
    Device,
    DeviceSettings,
    EngineFactory,
    EngineRequest,
    Instrument,
    SinkRequest,
    SourceRequest,
)
from zhcedge.core.types import B, DetectorSettings, ModelFacts, ViolationKind
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.pipeline.guard import Guard, GuardPolicy
from zhcedge.pipeline.host_memory import ArenaGrowth, HostArrays, HostObjects
from zhcedge.pipeline.plan import ChannelParts, Plan, PlanSettings
from zhcedge.pipeline.segment import Segment
from zhcedge.profiles import Profile, profile

_LIVE_CLAIMS = frozenset({ViolationKind.HOST_ARRAY, ViolationKind.ARENA_GROWTH})
_LIVE_CHECK_INTERVAL = 32
_AUDIT_CLAIMS = _LIVE_CLAIMS | {ViolationKind.HOST_OBJECT}


@dataclass(frozen=True)
class RunContext:
    """What a run needs beside its configuration.

    Attributes:
        segment: where results, spans and counters go.
        is_audit: watch with every instrument, also those too slow for the field.
        publishes: False keeps results out of the ring (a benchmark without a control process).
        engine: instead of the profile's, for a benchmark of all the rest.
    """

    segment: Segment
    clock: Clock
    lifecycle: Lifecycle
    is_audit: bool = False
    publishes: bool = True
    engine: EngineFactory | None = None


def build_plan(config: Config, context: RunContext, bundle: Bundle | None = None) -> Plan[object]:
    """Open everything that `config` names. Raises what a backend raises; then nothing stays open.

    Args:
        bundle: the verified model, loaded from the configuration when not given.
    """
    chosen = profile(config.profile)
    bundle = bundle or load_bundle(config.model.bundle)
    settings = _plan_settings(config, chosen, bundle)
    facts = _batched(bundle.facts, config.pipeline.batch)
    with contextlib.ExitStack() as undo:
        device = DEVICES.get(chosen.device)(DeviceSettings(threads=config.engine.threads, is_audit=context.is_audit))
        undo.callback(device.close)
        open_engine = context.engine or ENGINES.get(chosen.engine)
        engine = open_engine(EngineRequest(bundle.model_path, facts, config.engine.threads), device)
        undo.callback(engine.close)
        guard = make_guard(device, GuardPolicy(config.pipeline.guard), context.is_audit)
        undo.callback(guard.stop)
        parts = [
            _channel_parts(index, name, channel, config, chosen, device, context.clock)
            for index, (name, channel) in enumerate(config.channels.items())
        ]
        undo.pop_all()  # from here on the plan closes what it was given, also when it fails
        segment = context.segment
        return Plan(
            device,
            engine,
            parts,
            settings,
            guard,
            segment.frame_recorder,
            context.lifecycle,
            context.clock,
            ring=segment.ring if context.publishes else None,
            heartbeat=_counting(segment),
        )


def output_paths(config: Config) -> list[Path]:
    """Every file that the configured sinks write."""
    return [config.output_dir / sink.path for channel in config.channels.values() for sink in channel.sinks]


def make_guard(device: Device[B], policy: GuardPolicy, is_audit: bool) -> Guard:
    """The guard of a run on `device`, with the host instruments that this interpreter offers."""

    def plant_growth() -> None:
        with contextlib.suppress(PhaseError):
            device.arena.tensor("canary", (1,), "float32", "canary")

    instruments: list[Instrument] = [ArenaGrowth(lambda: device.arena.refused, plant_growth)]
    with contextlib.suppress(BackendUnavailableError):  # then the claim is blind, and the verdict `unproved`
        arrays = HostArrays()
        instruments.append(arrays)
        if is_audit:
            instruments.append(HostObjects(arrays))
    instruments += device.instruments()
    # In the field a violation is logged and counted, and a few frames later is soon enough.
    interval = _LIVE_CHECK_INTERVAL if policy is GuardPolicy.COUNT and not is_audit else 1
    return Guard(instruments, (_AUDIT_CLAIMS if is_audit else _LIVE_CLAIMS) | device.claims, policy, interval)


def _counting(segment: Segment) -> Callable[[int], None]:
    def heartbeat(frames: int) -> None:
        segment.counters["heartbeat"] = frames

    return heartbeat


def _plan_settings(config: Config, chosen: Profile, bundle: Bundle) -> PlanSettings:
    model, facts = config.model, bundle.facts
    detector = DetectorSettings(
        score_threshold=facts.score_threshold if model.score_threshold is None else model.score_threshold,
        nms_iou=facts.nms_iou if model.nms_iou is None else model.nms_iou,
        label_indices=None if model.labels is None else label_indices(model.labels, facts.labels),
    )
    return PlanSettings(
        lanes=config.pipeline.lanes or chosen.lanes,
        slots=config.pipeline.slots,
        warmup_frames=config.pipeline.warmup_frames,
        detector=detector,
    )


def _batched(facts: ModelFacts, batch: int) -> ModelFacts:
    """The model with the configured batch, 0 for its own. Raises ConfigError for one that it does not take."""
    if batch in (0, facts.input_shape[0]):
        return facts
    if not facts.has_free_batch:
        raise ConfigError(
            f"model {facts.name} is made for batches of {facts.input_shape[0]}",
            where="pipeline.batch",
            fix=f"set it to {facts.input_shape[0]} or 0, or export the model with a free batch",
        )
    return facts.with_batch(batch)


def label_indices(wanted: tuple[str, ...], labels: tuple[str, ...], key: str = "model.labels") -> tuple[int, ...]:
    """Positions of the labels that `key` wants. Raises ConfigError naming every one that the model does not have."""
    unknown = [label for label in wanted if label not in labels]
    if unknown:
        close = [match for label in unknown for match in difflib.get_close_matches(label, labels, n=1)]
        raise ConfigError(
            f"the model has no label {', '.join(map(repr, unknown))}",
            where=key,
            fix=f"did you mean {', '.join(map(repr, close))}?" if close else "see the bundle's labels.txt",
        )
    return tuple(sorted({labels.index(label) for label in wanted}))


def _channel_parts(
    index: int,
    name: str,
    channel: ChannelConfig,
    config: Config,
    chosen: Profile,
    device: Device[object],
    clock: Clock,
) -> ChannelParts[object]:
    source = channel.source
    uri = str(source_path(source))
    request = SourceRequest(index, name, uri, source.realtime, source.loop, clock)
    sinks = [
        (sink.kind, SINKS.get(chosen.sinks[sink.kind])(SinkRequest(name, config.output_dir / sink.path), device))
        for sink in channel.sinks
    ]
    return ChannelParts(name, SOURCES.get(chosen.source)(request, device), sinks)


def source_path(source: SourceConfig) -> Path:
    """The file that a source reads. Raises SourceMissingError when there is none."""
    if source.clip is not None:
        return clip_path(source.clip)
    path = Path(source.uri)
    try:
        path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        raise SourceMissingError("there is no such file", where=str(path), fix="check the path") from error
    return path


def clip_path(name: str) -> Path:
    """A clip that comes with the package. Raises SourceMissingError."""
    path = Path(str(resources.files("zhcedge") / "data" / f"{name}.mp4"))
    if not path.is_file():
        clips = sorted(entry.stem for entry in path.parent.glob("*.mp4"))
        raise SourceMissingError("no such bundled clip", where=f"clip:{name}", fix=f"bundled: {', '.join(clips)}")
    return path

"""From a configuration to an initialised Plan: the only place that chooses backends."""

from __future__ import annotations

import contextlib
import difflib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zhcedge.app.channels import ChannelFactory, keep_no_packets
from zhcedge.app.plan_start import EngineStart, open_started, plain_request, start_engine
from zhcedge.backends.registry import DEVICES, JPEG_ENCODERS, RANGES
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.schema import Config
from zhcedge.core.errors import BackendUnavailableError, ConfigError, PhaseError
from zhcedge.core.lifecycle import Lifecycle
from zhcedge.core.packets import PacketKeeper
from zhcedge.core.ports import NO_RANGES, Clock, Device, Instrument
from zhcedge.core.requests import DeviceSettings, EngineFactory
from zhcedge.core.types import B, DetectorSettings, ModelFacts, ViolationKind
from zhcedge.models.bundle import Bundle, load_bundle
from zhcedge.pipeline.channel import ChannelListener, nobody_listens
from zhcedge.pipeline.guard import Guard, GuardPolicy
from zhcedge.pipeline.host_memory import ArenaGrowth, HostArrays, HostObjects
from zhcedge.pipeline.plan import Plan, PlanSettings
from zhcedge.pipeline.segment import Segment
from zhcedge.profiles import Profile, profile

_LIVE_CLAIMS = frozenset({ViolationKind.HOST_ARRAY, ViolationKind.ARENA_GROWTH})
_LIVE_CHECK_INTERVAL = 32
_SNAPSHOT_QUALITY = 80  # of JPEG: 4K stays below what a snapshot may have
_AUDIT_CLAIMS = _LIVE_CLAIMS | {ViolationKind.HOST_OBJECT}


@dataclass(frozen=True)
class RunContext:
    """What a run needs beside its configuration.

    Attributes:
        segment: where results, spans and counters go.
        is_audit: watch with every instrument, also those too slow for the field.
        publishes: False keeps results out of the ring (a benchmark without a control process).
        engine: instead of the profile's, for a benchmark of all the rest.
        on_device: called with the device once it is open.
        on_channels: called with what makes channels, for those that come later.
        on_engine: told which engine runs, and why it is not the wanted one.
        listener: told how channels are doing; any thread.
        stop: set when the run is to end, while it is being built already.
        images: what the channels' source reads, in order, instead of the images that its path names.
        picture_name: file name of the picture with a sequence number, in folders of pictures; None numbers them on.
        is_patient: wait for a stream that is not there at the start, instead of giving it up.
        keep_packets: gives what keeps the compressed packets of a channel, by name; None keeps none.
    """

    segment: Segment
    clock: Clock
    lifecycle: Lifecycle
    is_audit: bool = False
    publishes: bool = True
    engine: EngineFactory | None = None
    on_device: Callable[[Device[object]], None] = lambda device: None
    on_channels: Callable[[ChannelFactory], None] = lambda channels: None
    on_engine: Callable[[EngineStart], None] = lambda start: None
    listener: ChannelListener = nobody_listens
    stop: threading.Event | None = None
    images: tuple[Path, ...] = ()
    picture_name: Callable[[int], str] | None = None
    is_patient: bool = True
    keep_packets: Callable[[str, ChannelConfig], PacketKeeper | None] = keep_no_packets


def build_plan(config: Config, context: RunContext, bundle: Bundle | None = None) -> Plan[object]:
    """Open everything that `config` names. Raises what a backend raises; then nothing stays open.

    Args:
        bundle: the verified model, loaded from the configuration when not given.
    """
    chosen = profile(config.profile)
    bundle = bundle or load_bundle(config.model.bundle)
    settings = _plan_settings(config, chosen, bundle)
    facts = batched(bundle.facts, config.pipeline.batch, chosen)
    ranges = context.segment.frame_recorder.ranges = RANGES.get("nvtx")() if config.pipeline.nvtx else NO_RANGES
    with contextlib.ExitStack() as undo:
        device = DEVICES.get(chosen.device)(
            DeviceSettings(threads=config.engine.threads, is_audit=context.is_audit, ranges=ranges)
        )
        undo.callback(device.close)
        context.on_device(device)
        if context.engine is not None:
            engine = context.engine(plain_request(config, bundle, facts), device)
        else:
            engine, start = open_started(start_engine(config, chosen, bundle, facts), chosen, device)
            context.on_engine(start)
        undo.callback(engine.close)
        guard = make_guard(device, GuardPolicy(config.pipeline.guard), context.is_audit)
        undo.callback(guard.stop)
        channels = ChannelFactory(
            chosen,
            device,
            facts.labels,
            config.output_dir,
            context.clock,
            guard.rewarm,
            ranges,
            context.images,
            context.picture_name,
            context.is_patient,
            context.keep_packets,
        )
        parts = [channels.parts(index, name, channel) for index, (name, channel) in enumerate(config.channels.items())]
        context.on_channels(channels)
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
            listener=context.listener,
            stop=context.stop,
            make_jpeg=lambda: JPEG_ENCODERS.get(chosen.jpeg)(device, _SNAPSHOT_QUALITY),
        )


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
        max_wait_ms=config.pipeline.max_wait_ms,
        max_latency_ms=config.pipeline.max_latency_ms if config.pipeline.batch == "auto" else None,
    )


def batched(facts: ModelFacts, batch: int | Literal["auto"], chosen: Profile) -> ModelFacts:
    """The model with the configured batch, 0 for its own. Raises ConfigError for one that it does not take."""
    if batch == "auto":
        return facts.with_batch(chosen.most_batch) if facts.has_free_batch else facts
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

"""Opens a channel: its source, its sinks and all memory that its frames will need."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Generic

from zhcedge.core.errors import ZhcEdgeError
from zhcedge.core.message_ids import tagged
from zhcedge.core.ports import Device, FrameSlot, SourceFacts
from zhcedge.core.types import B, ImageFormat, PixelFormat, Plane
from zhcedge.pipeline.channel import Channel, ChannelParts, TiledFrame
from zhcedge.pipeline.gate import Gate
from zhcedge.pipeline.masks import rasterise
from zhcedge.pipeline.picture_watch import PictureWatch
from zhcedge.pipeline.pools import SharedSlot, SlotPool
from zhcedge.pipeline.tiles import Rectangle, TileMerger

log = logging.getLogger(__name__)

_SINK_FRAMES = 4  # slots added for each sink, so that an encoder's hiccup does not starve the reader


class ChannelOpener(Generic[B]):
    """Makes channels of parts. One thread at a time: in the initialising phase the owner's, later under a lease.

    Args:
        watch_thread: for the threads of sinks.
        nms_iou: overlap from which boxes of different parts of a picture are one object.
        in_lanes: frames that all lanes together hold.
        slots: of every channel, 0 to size them.
        draws: the lanes' programs draw results into the frames.
    """

    def __init__(
        self,
        device: Device[B],
        watch_thread: Callable[[], None],
        *,
        nms_iou: float,
        in_lanes: int,
        slots: int,
        draws: bool,
    ) -> None:
        self._device, self._watch_thread = device, watch_thread
        self._nms_iou, self._in_lanes, self._slots, self._draws = nms_iou, in_lanes, slots, draws

    def open(self, index: int, part: ChannelParts[B], waiting: int) -> Channel[B]:
        """Open source and sinks, allocate the slots.

        Args:
            index: of the channel, never used before in this run.
            waiting: frames that may be read ahead.

        Raises what a source, a sink or the arena raises; then everything that was opened is closed again, and the
        memory is back in the arena.
        """
        return self.build(index, part, waiting, part.source.open())

    def build(self, index: int, part: ChannelParts[B], waiting: int, facts: SourceFacts) -> Channel[B]:
        """As `open`, for a source that is open already; it is closed when this fails."""
        owner = f"channel {index} {part.name}"
        try:
            for _, sink in part.sinks:
                sink.watch_threads(self._watch_thread)
                sink.open(facts)
            return self._with_memory(index, part, waiting, facts, owner)
        except BaseException:
            close_parts(part, is_complete=False)
            self._device.dismiss(index)
            self._device.arena.release(owner)
            raise

    def give_back(self, channel: Channel[B]) -> None:
        """The channel is closed and nothing of it is in flight: its memory goes back to the arena. Any thread."""
        self._device.dismiss(channel.index)
        self._device.arena.release(channel.owner)

    def _with_memory(
        self, index: int, part: ChannelParts[B], waiting: int, facts: SourceFacts, owner: str
    ) -> Channel[B]:
        image, settings = facts.format, part.settings
        slot_format = ImageFormat(
            image.width_px, image.height_px, PixelFormat.NV12, matrix=image.matrix, is_full_range=image.is_full_range
        )
        count = self._slots or waiting + self._in_lanes + _SINK_FRAMES * len(part.sinks)
        mask = self._mask(part, slot_format, owner)
        slots = [self._slot(number, index, slot_format, owner, mask) for number in range(count)]
        tiled = () if settings.regions.is_whole else self._tiles(slots, part, owner)
        for slot in (slots[0], *(view for frame in tiled[:1] for view in frame.parts)):
            self._device.admit(slot)
        skips, pool = settings.skips_frames, SlotPool(slots)
        draws_after = bool(part.sinks) and (bool(tiled) or skips or not self._draws)
        for slot in slots:
            slot.is_drawn = not draws_after
        description = facts.description.removeprefix(f"{part.name}: ")
        log.info(
            "channel %s: %s; %s",
            part.name,
            description,
            self._sizing(count, waiting, len(part.sinks)),
            extra=tagged(camera=part.name),
        )
        return Channel(
            index,
            part.name,
            owner,
            part.source,
            facts,
            tuple(sink for _, sink in part.sinks),
            tuple(f"sink {number} {name}" for number, (name, _) in enumerate(part.sinks)),
            pool,
            tuple(SharedSlot(pool) for _ in slots),
            settings,
            tiled,
            Gate(settings.detect_interval, settings.motion) if skips else None,
            self._device.motion_meter(slots[0], count, owner) if settings.motion else None,
            PictureWatch(self._device.picture_meter(slots[0], owner)) if settings.watches_picture else None,
            draws_after,
            self._draws and not draws_after and not tiled,
        )

    def _mask(self, part: ChannelParts[B], image: ImageFormat, owner: str) -> Plane[B] | None:
        if not part.masks:
            return None
        return self._device.arena.plane(rasterise(part.masks, image.width_px, image.height_px), owner)

    def _slot(self, number: int, channel: int, image: ImageFormat, owner: str, mask: Plane[B] | None) -> FrameSlot[B]:
        arena = self._device.arena
        return FrameSlot(number, channel, arena.surface(image, owner), arena.results(owner), mask=mask)

    def _tiles(self, slots: list[FrameSlot[B]], part: ChannelParts[B], owner: str) -> tuple[TiledFrame[B], ...]:
        image = slots[0].surface.format
        rectangles = part.settings.regions.rectangles(image.width_px, image.height_px)
        merger = TileMerger(rectangles, image.width_px, image.height_px, self._nms_iou)
        return tuple(
            TiledFrame(
                slot, tuple(self._view(slot, number, where, owner) for number, where in enumerate(rectangles)), merger
            )
            for slot in slots
        )

    def _view(self, slot: FrameSlot[B], number: int, where: Rectangle, owner: str) -> FrameSlot[B]:
        arena = self._device.arena
        surface = arena.view(slot.surface, where.left_px, where.top_px, where.width_px, where.height_px)
        return replace(slot, surface=surface, results=arena.results(owner), mask=None, part=number, is_drawn=False)

    def _sizing(self, slots: int, waiting: int, sinks: int) -> str:
        if self._slots:
            return f"{slots} slots as configured"
        in_sinks = f"{sinks} sinks x {_SINK_FRAMES}"
        return f"{slots} slots = {waiting} reading and waiting + {self._in_lanes} in lanes + {in_sinks}"


def close_parts(part: ChannelParts[B], is_complete: bool) -> ZhcEdgeError | None:
    """Close sinks, then source, whatever they raise. Returns the first error."""
    first: ZhcEdgeError | None = None
    for close in (*(lambda sink=sink: sink.close(is_complete) for _, sink in part.sinks), part.source.close):
        try:
            close()
        except ZhcEdgeError as error:
            first = first or error
    return first

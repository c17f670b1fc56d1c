"""Draws what rules see: zones, lines and tracks, on pictures in host memory. For tools, not for the frame path."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from zhcedge.config.channel import ChannelConfig
from zhcedge.core.events import Box

COLOURS = ((230, 60, 60), (60, 190, 75), (60, 120, 235), (245, 200, 20), (190, 70, 230), (20, 200, 200))
"""Of zones, then of lines, in the order of the configuration, again and again."""

_FILL_ALPHA = 80  # of 255: what is in a zone must stay recognisable
_INK, _PAPER = (255, 255, 255, 255), (0, 0, 0, 160)


class ShownTrack(NamedTuple):
    """A track in one frame; its box in pixels of the picture."""

    id: int
    box: Box
    is_stationary: bool = False


class RuleArtist:
    """Draws one channel's rules. Owned by one thread.

    Args:
        channel: its zones and lines.
        size_px: width and height of the pictures.
    """

    def __init__(self, channel: ChannelConfig, size_px: tuple[int, int]) -> None:
        self._size_px = size_px
        self._line_px = max(2, min(size_px) // 240)
        self._text_px = max(11, min(size_px) // 36)
        self._font = ImageFont.load_default(size=self._text_px)
        self._rules = Image.new("RGBA", size_px)
        rules = ImageDraw.Draw(self._rules)
        colours = [COLOURS[index % len(COLOURS)] for index in range(len(channel.zones) + len(channel.lines))]
        areas = zip(channel.zones.items(), colours, strict=False)
        for (_, zone), colour in areas:
            # A layer of its own: where zones overlap, both are to be seen.
            layer = Image.new("RGBA", size_px)
            ImageDraw.Draw(layer).polygon(self._points(zone.points), fill=(*colour, _FILL_ALPHA))
            self._rules.alpha_composite(layer)
        for (name, zone), colour in zip(channel.zones.items(), colours, strict=False):
            corners = self._points(zone.points)
            rules.line([*corners, corners[0], corners[1]], fill=(*colour, 255), width=self._line_px, joint="curve")
            self._name(rules, min(corners, key=lambda corner: (corner[1], corner[0])), name)
        for (name, line), colour in zip(channel.lines.items(), colours[len(channel.zones) :], strict=True):
            self._draw_line(rules, self._points(line.points), (*colour, 255))
            self._name(rules, self._points(line.points)[0], name)

    def draw(self, picture: Image.Image, tracks: Iterable[ShownTrack]) -> Image.Image:
        """A copy of an RGB picture with rules and tracks on it. Raises ValueError for one of another size."""
        made = picture.convert("RGBA")
        made.alpha_composite(self._rules)
        drawing = ImageDraw.Draw(made)
        for track in tracks:
            x1, y1, x2, y2 = track.box
            width = self._line_px * (1 if track.is_stationary else 2) // 2 or 1
            drawing.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=_INK, width=width)
            self._name(drawing, (x1, min(y2, self._size_px[1] - 2 * self._text_px)), f"#{track.id}")
        return made.convert("RGB")

    def _points(self, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        width, height = self._size_px
        return [(x * (width - 1), y * (height - 1)) for x, y in points]

    def _draw_line(
        self, drawing: ImageDraw.ImageDraw, ends: Sequence[tuple[float, float]], colour: tuple[int, int, int, int]
    ) -> None:
        """The line, and an arrow over its middle that points to where `in` goes."""
        (x1, y1), (x2, y2) = ends
        drawing.line([(x1, y1), (x2, y2)], fill=colour, width=2 * self._line_px)
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
        in_x, in_y = -along_y, along_x  # the right hand of one who walks along the line; y grows downwards
        size = 12.0 * self._line_px
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        tip = (x + in_x * size, y + in_y * size)
        drawing.line([(x, y), tip], fill=colour, width=2 * self._line_px)
        back_x, back_y = tip[0] - in_x * size / 2, tip[1] - in_y * size / 2
        wings = [(back_x + side * along_x * size / 3, back_y + side * along_y * size / 3) for side in (-1, 1)]
        drawing.polygon([tip, *wings], fill=colour)

    def _name(self, drawing: ImageDraw.ImageDraw, place: tuple[float, float], text: str) -> None:
        """Text with its upper left corner at a place, moved so that all of it can be seen."""
        left, top, right, bottom = drawing.textbbox((0, 0), text, font=self._font)
        width, height = self._size_px
        x = min(max(place[0], 0), max(width - (right - left) - 4, 0))
        y = min(max(place[1], 0), max(height - (bottom - top) - 4, 0))
        drawing.rectangle((x, y, x + right - left + 4, y + bottom - top + 4), fill=_PAPER)
        drawing.text((x + 2 - left, y + 2 - top), text, font=self._font, fill=_INK)

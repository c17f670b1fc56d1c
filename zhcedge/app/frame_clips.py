"""Clips in the frame process: which channels keep their packets, and what the control process is told.

A finished clip is the message {"clip": {"camera": name, "key": of the event, "notes": [text, ...], "parts": [{"path":
absolute, "bytes": of the file, "seconds": of the file, "start_ns": wall clock of its first picture, "from_s", "to_s":
the event's range in it}, ...]}}. Without parts there is no clip, and the notes say why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zhcedge.app.storage_settings import storage_settings
from zhcedge.config.channel import ChannelConfig
from zhcedge.config.schema import Config
from zhcedge.core.errors import UsageError
from zhcedge.core.packets import PacketKeeper
from zhcedge.media.clip_channel import Clip, ClipSettings
from zhcedge.media.clip_recorder import ClipRecorder
from zhcedge.media.packets import PacketRing
from zhcedge.store.media_files import clips_folder

_LATE_S = 10.0
"""Longest time from an event's first picture to the moment when its clip is asked for: the tracker believes nothing at
once, and the control process may be busy."""

_MIB = 1024 * 1024


class FrameClips:
    """Any thread.

    Args:
        send: takes messages for the control process; any thread.
    """

    def __init__(self, config: Config, send: Callable[[dict[str, object]], None]) -> None:
        self._storage = storage_settings(config)
        self._recorder = ClipRecorder(lambda clip: send({"clip": clip_message(clip)}))

    def keeper(self, name: str, channel: ChannelConfig) -> PacketKeeper | None:
        """What keeps the packets of a channel that begins; None where it records no clips.

        Raises BackendUnavailableError without PyAV.
        """
        clips, storage = channel.clips, self._storage
        if not clips.enabled or storage is None:
            self._recorder.forget(name)
            return None
        ring = PacketRing(clips.buffer_mb * _MIB, clips.before_s + _LATE_S)
        settings = ClipSettings(
            clips_folder(storage.dir, name), clips.before_s, clips.after_s, clips.max_s, storage.limits.min_free_bytes
        )
        self._recorder.add(name, ring, settings)
        return ring

    def forget(self, name: str) -> None:
        """A channel has been removed: its recording ends."""
        self._recorder.forget(name)

    def ask(self, name: str, value: object) -> None:
        """Carry out the command `clip` (app/frame_commands.py).

        Raises UsageError or MediaError, saying why, where there can be none.
        """
        if not isinstance(value, Mapping):
            raise UsageError(f"{value!r} says nothing about a clip", where=name)
        key, start_ns, end_ns = value.get("key"), value.get("start_ns"), value.get("end_ns")
        if not isinstance(key, str) or not isinstance(start_ns, int) or not isinstance(end_ns, int | None):
            raise UsageError(f"{value!r} says nothing about a clip", where=name)
        self._recorder.ask(name, key, start_ns, end_ns)

    def close(self) -> None:
        """Finish and tell every clip, as far as it has come."""
        self._recorder.close()


def clip_message(clip: Clip) -> dict[str, object]:
    """What stands in the message under "clip"."""
    return {
        "camera": clip.channel,
        "key": clip.key,
        "notes": list(clip.notes),
        "parts": [
            {
                "path": str(part.path),
                "bytes": part.size_bytes,
                "seconds": part.seconds,
                "start_ns": part.start_ns,
                "from_s": part.from_s,
                "to_s": part.to_s,
            }
            for part in clip.parts
        ],
    }

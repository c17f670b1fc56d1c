"""Which of the configured outputs a run has really written."""

from __future__ import annotations

from pathlib import Path

from zhcedge.config.schema import Config

_Mark = tuple[int, int] | None


class OutputWatch:
    """Looks at the files and folders of the configured sinks before a run, and again after it.

    Make it before a sink is opened. Sinks give a file its name when it is whole, so a written one is another file than
    the one before it; a folder changes with every picture.
    """

    def __init__(self, config: Config) -> None:
        sinks = (sink for channel in config.channels.values() for sink in channel.sinks)
        paths = [config.output_dir / sink.path for sink in sinks if sink.path is not None]
        self._before = {path: _mark(path) for path in paths}

    def written(self) -> list[Path]:
        """Those that are there and were not, or are not what they were, in the configuration's order."""
        return [path for path, before in self._before.items() if _mark(path) not in (None, before)]


def _mark(path: Path) -> _Mark:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns

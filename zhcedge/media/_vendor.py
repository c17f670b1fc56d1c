"""The one place that imports PyAV (BSD-3-Clause; its wheels carry FFmpeg's libraries).

Modules of this package import without PyAV; whatever opens a container calls `require_av` first.
"""

from __future__ import annotations

from zhcedge.core.errors import BackendUnavailableError

__all__ = ["av", "require_av"]

try:
    import av
    import av.error
    import av.filter
    import av.logging
except ImportError:  # reported by require_av, at the moment when somebody needs it
    av = None  # type: ignore[assignment]


def require_av() -> None:
    """Raise BackendUnavailableError, with the line that installs it, where PyAV is missing."""
    if av is None:
        raise BackendUnavailableError(
            "PyAV is not installed, video can't be read or written", fix="pip install 'zhcedge[cpu]'"
        )

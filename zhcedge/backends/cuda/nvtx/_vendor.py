"""The nvtx package (Apache-2.0 with LLVM exception), the only module that imports it.

Needs no GPU and no driver. Without the package this module raises BackendUnavailableError.
"""

from __future__ import annotations

from typing import Any

from zhcedge.core.errors import BackendUnavailableError

try:
    import nvtx as _nvtx
except ImportError as error:
    raise BackendUnavailableError(
        "nvtx is not installed", where="pipeline.nvtx", fix="pip install 'zhcedge[nvtx]', or set pipeline.nvtx: false"
    ) from error


def domain(name: str) -> Any:
    """The domain called `name`; one that does nothing when no profiler is attached to this process."""
    return _nvtx.get_domain(name)

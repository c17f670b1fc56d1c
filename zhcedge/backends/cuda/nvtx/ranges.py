"""Implements core.ports.Ranges with NVTX, for Nsight Systems (`nsys profile zhc-edge ...`).

With CUDA graphs a range marks what the host does: `read`, `ingest`, `launch`, `collect` and `sink encode` cover every
frame, while the names of stages appear only where they are enqueued, once in warm-up and once at the capture. A replay
is one launch for the profiler; `nsys profile --cuda-graph-trace=node` shows its kernels by their own names.
"""

from __future__ import annotations

from zhcedge.backends.cuda.nvtx import _vendor

DOMAIN = "zhcedge"


class NvtxRanges:
    """Any thread. A range costs below a microsecond with a profiler attached, and a quarter of that without.

    Raises BackendUnavailableError where the nvtx package is missing: on import of this module.
    """

    def __init__(self) -> None:
        self._domain = _vendor.domain(DOMAIN)
        self._attributes: dict[str, object] = {}
        self._push, self._pop = self._domain.push_range, self._domain.pop_range

    def push(self, name: str) -> None:
        attributes = self._attributes.get(name)
        if attributes is None:  # registers the text with the profiler, once a name
            attributes = self._attributes[name] = self._domain.get_event_attributes(message=name)
        self._push(attributes)

    def pop(self) -> None:
        self._pop()

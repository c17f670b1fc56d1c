"""One typed registry per port: name -> "module:factory", imported only when chosen."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Generic, TypeVar

from zhcedge.core.errors import UsageError
from zhcedge.core.ports import DeviceFactory, EngineFactory, SinkFactory, SourceFactory

F = TypeVar("F")


@dataclass(frozen=True)
class Registry(Generic[F]):
    """Names of one port's implementations. A factory's module is imported by `get`, never earlier."""

    port: str
    entries: dict[str, str]

    def get(self, name: str) -> F:
        """The factory called `name`. Raises UsageError for an unknown name."""
        if name not in self.entries:
            raise UsageError(f"no {self.port} is called {name!r}", fix=f"choose one of {', '.join(self.entries)}")
        module, _, attribute = self.entries[name].partition(":")
        factory: F = getattr(importlib.import_module(module), attribute)
        return factory


DEVICES: Registry[DeviceFactory] = Registry(
    "device",
    {"cpu": "zhcedge.backends.cpu.device:CpuDevice", "cuda": "zhcedge.backends.cuda.device:CudaDevice"},
)
ENGINES: Registry[EngineFactory] = Registry(
    "engine",
    {
        "onnxruntime-cpu": "zhcedge.backends.engines.onnxruntime:open_cpu",
        "onnxruntime-cuda": "zhcedge.backends.engines.onnxruntime_cuda:open_cuda",
    },
)
SOURCES: Registry[SourceFactory] = Registry(
    "source",
    {"pyav": "zhcedge.backends.cpu.source:PyAvSource", "nvdec": "zhcedge.backends.nvcodec.source:NvCodecSource"},
)
SINKS: Registry[SinkFactory] = Registry(
    "sink",
    {"mp4": "zhcedge.backends.cpu.mp4_sink:Mp4Sink", "nvjpeg": "zhcedge.backends.cuda.nvjpeg.sink:JpegSink"},
)

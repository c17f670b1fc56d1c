"""One typed registry per port: name -> "module:factory", imported only when chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from zhcedge.core.errors import UsageError
from zhcedge.core.ports import Device, Source
from zhcedge.core.requests import (
    DeviceFactory,
    EngineFactory,
    JpegFactory,
    MeterFactory,
    RangesFactory,
    SinkFactory,
    SourceFactory,
    SourceRequest,
)

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
        "pattern": "zhcedge.backends.engines.pattern:open_pattern",
        "tensorrt": "zhcedge.backends.engines.tensorrt.engine:open_tensorrt",
        "tensorrt-rtx": "zhcedge.backends.engines.tensorrt.engine:open_tensorrt_rtx",
    },
)
SOURCES: Registry[SourceFactory] = Registry(
    "source",
    {
        "pyav": "zhcedge.backends.cpu.source:PyAvSource",
        "nvdec": "zhcedge.backends.nvcodec.source:NvCodecSource",
        "image": "zhcedge.backends.cpu.image_source:ImageSource",
        "pattern": "zhcedge.backends.cpu.pattern_source:PatternSource",
    },
)
SOURCE_WRAPPERS: Registry[Callable[[Source[object], Device[object]], Source[object]]] = Registry(
    "source wrapper",
    {"cuda-upload": "zhcedge.backends.cuda.upload:HostSource"},
)
SINKS: Registry[SinkFactory] = Registry(
    "sink",
    {
        "mp4": "zhcedge.backends.cpu.mp4_sink:Mp4Sink",
        "jpeg": "zhcedge.backends.cpu.jpeg_sink:JpegFolderSink",
        "jsonl": "zhcedge.media.jsonl_sink:JsonlSink",
        "rtsp": "zhcedge.backends.cpu.rtsp_sink:RtspSink",
        "nvjpeg-folder": "zhcedge.backends.cuda.nvjpeg.folder_sink:JpegFolderSink",
        "nvjpeg": "zhcedge.backends.cuda.nvjpeg.sink:JpegSink",
        "nvenc": "zhcedge.backends.nvcodec.sink:NvencSink",
    },
)
JPEG_ENCODERS: Registry[JpegFactory] = Registry(
    "JPEG encoder",
    {
        "libav": "zhcedge.backends.cpu.jpeg_encoder:HostJpegEncoder",
        "nvjpeg": "zhcedge.backends.cuda.nvjpeg.jpeg_encoder:DeviceJpegEncoder",
    },
)
RANGES: Registry[RangesFactory] = Registry("profiler", {"nvtx": "zhcedge.backends.cuda.nvtx.ranges:NvtxRanges"})
METERS: Registry[MeterFactory] = Registry("link meter", {"nvml": "zhcedge.backends.cuda.nvml.pcie:PcieMeter"})


def source_factory(name: str) -> SourceFactory:
    """The factory of a source, or of one inside a wrapper: "nvdec", "image", "image|cuda-upload".

    Raises UsageError for an unknown name.
    """
    inner, _, wrapper = name.partition("|")
    make = SOURCES.get(inner)
    if not wrapper:
        return make
    wrap = SOURCE_WRAPPERS.get(wrapper)

    def make_wrapped(request: SourceRequest, device: Device[object]) -> Source[object]:
        return wrap(make(request, device), device)

    return make_wrapped

"""Our kernels on one GPU: compiled or taken from the cache, loaded, ready to launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import pycuda
from zhcedge.backends.cuda.context import CudaContext, CudaStream
from zhcedge.backends.cuda.descriptor import FRAME
from zhcedge.backends.cuda.nvrtc import Nvrtc, cache_folder, load_cubin
from zhcedge.core.errors import PipelineError

Grid = tuple[int, int, int]

FUNCTIONS: dict[str, tuple[str, str]] = {
    "letterbox": ("letterbox", "PPiiffii"),
    "heads": ("heads", "PPiiii"),
    "collect": ("detect", "PiifPPPPP"),
    "suppress": ("detect", "PifPPPPP"),
    "mask": ("mask", "P"),
    "overlay": ("overlay", "PPPPPii"),
    "ingest": ("ingest", f"{FRAME.size}s{FRAME.size}s"),
    "motion": ("motion", f"{FRAME.size}sPiffP"),
    "picture": ("picture", f"{FRAME.size}siP"),
    "downscale": ("downscale", f"{FRAME.size}s{FRAME.size}s"),
}
"""Function -> (its .cu file, its arguments as struct characters). A struct Frame by value is its bytes."""


class Kernel:
    """One function with its argument types. `launch` costs a few microseconds: captured once, or rare."""

    def __init__(self, function: pycuda.Function, arguments: str, name: str) -> None:
        self._function = function.prepare(arguments)
        self.name = name

    def launch(self, stream: CudaStream, grid: Grid, block: Grid, *arguments: int | float | bytes) -> None:
        """Enqueue on a stream, also one that is being captured. Any attached thread. Raises PipelineError."""
        try:
            self._function.prepared_async_call(grid, block, stream.native, *arguments)
        except _vendor.PYCUDA_ERROR as error:
            raise PipelineError(f"kernel {self.name} can't be launched: {error}", where="cuda") from error


class Kernels:
    """Every kernel of kernels/*.cu, loaded into the context. Made in the initialising phase.

    Args:
        names: functions to load; all by default.
        folder: the cubin cache.

    Raises BackendUnavailableError without NVRTC, PipelineError when a kernel does not compile or load.
    """

    def __init__(
        self, context: CudaContext, names: Sequence[str] = tuple(FUNCTIONS), folder: Path | None = None
    ) -> None:
        nvrtc = Nvrtc(context.driver_version[0])
        major, minor = context.compute_capability
        self._context = context
        self._modules: dict[str, pycuda.Module] = {}
        self._kernels: dict[str, Kernel] = {}
        for file in sorted({FUNCTIONS[name][0] for name in names}):
            cubin = load_cubin(file, 10 * major + minor, nvrtc, folder or cache_folder())
            try:
                with context.push():
                    self._modules[file] = pycuda.module_from_buffer(cubin)
            except _vendor.PYCUDA_ERROR as error:
                raise PipelineError(
                    f"kernel {file} does not load: {error}",
                    where=f"{context.name}, NVRTC {nvrtc.version[0]}.{nvrtc.version[1]}",
                    fix="install an NVRTC that is not newer than the driver",
                ) from error
        with context.push():
            for name in names:
                file, arguments = FUNCTIONS[name]
                self._kernels[name] = Kernel(self._modules[file].get_function(name), arguments, name)

    def __getitem__(self, name: str) -> Kernel:
        return self._kernels[name]

    def close(self) -> None:
        """Unload; on the thread that opened the context."""
        with self._context.push():
            self._kernels.clear()
            self._modules.clear()

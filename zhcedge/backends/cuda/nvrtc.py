"""Kernels compiled by NVRTC into cubins, which are kept on disk. Needs no GPU.

NVRTC is bound with ctypes because two major versions may be installed side by side: a cubin of NVRTC 13 does not load
on a driver of CUDA 12, so the driver's own major version is taken first and never a newer one. Eight functions of
nvrtc.h are used.

A cached cubin's name is a hash of everything that it depends on: source, common header, options, architecture and
NVRTC's version. A file is written under a temporary name and renamed, so readers never see half of one.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from zhcedge.core.errors import BackendUnavailableError, PipelineError

log = logging.getLogger(__name__)

KERNELS = ("detect", "downscale", "heads", "ingest", "letterbox", "mask", "motion", "overlay", "picture")
"""Names of the .cu files; each holds the functions that stages.py and device.py name."""

_HEADER = "common.cuh"
_MAJORS = (13, 12)
_OPTIONS = ("--std=c++17",)
_EXACT = ("--fmad=false",)  # detect must round as its numpy twin does
_KERNEL_OPTIONS = {"detect": _EXACT}


@dataclass(frozen=True)
class KernelSource:
    """One .cu file as NVRTC gets it."""

    name: str
    text: str
    header: str
    options: tuple[str, ...]


def kernel_source(name: str) -> KernelSource:
    """Read a kernel from the package. Raises PipelineError when the installation lacks it."""
    folder = resources.files("zhcedge.backends.cuda") / "kernels"
    try:
        text, header = (folder / f"{name}.cu").read_text("utf-8"), (folder / _HEADER).read_text("utf-8")
    except OSError as error:
        raise PipelineError(f"kernel {name} is missing from the installation", fix="install zhcedge again") from error
    return KernelSource(name, text, header, _OPTIONS + _KERNEL_OPTIONS.get(name, ()))


class Nvrtc:
    """One loaded libnvrtc. Any thread; NVRTC itself takes a lock.

    Args:
        newest_major: take no version of a later major than this, the driver's.

    Raises BackendUnavailableError when no suitable library is installed.
    """

    def __init__(self, newest_major: int = _MAJORS[0]) -> None:
        self._library = _load([major for major in _MAJORS if major <= newest_major])
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._do("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version: tuple[int, int] = (major.value, minor.value)

    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities it can compile for, as numbers: 86 for 8.6."""
        count = ctypes.c_int()
        self._do("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._do("nvrtcGetSupportedArchs", numbers)
        return tuple(numbers)

    def compile(self, source: KernelSource, architecture: int) -> bytes:
        """The cubin of a kernel. Raises PipelineError with the compiler's own message when it does not compile."""
        program = ctypes.c_void_p()
        self._do(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.text.encode(),
            f"{source.name}.cu".encode(),
            1,
            (ctypes.c_char_p * 1)(source.header.encode()),
            (ctypes.c_char_p * 1)(_HEADER.encode()),
        )
        try:
            options = [option.encode() for option in (*source.options, f"--gpu-architecture=sm_{architecture}")]
            result = self._library.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            if result:
                raise PipelineError(
                    f"kernel {source.name} does not compile for sm_{architecture}: {self._log(program)}",
                    where=f"NVRTC {self.version[0]}.{self.version[1]}",
                    fix="install an NVRTC that knows this GPU",
                )
            size = ctypes.c_size_t()
            self._do("nvrtcGetCUBINSize", program, ctypes.byref(size))
            cubin = ctypes.create_string_buffer(size.value)
            self._do("nvrtcGetCUBIN", program, cubin)
            return cubin.raw
        finally:
            self._do("nvrtcDestroyProgram", ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._do("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(max(size.value, 1))
        self._do("nvrtcGetProgramLog", program, text)
        return text.value.decode(errors="replace").strip() or "no message; the architecture may be unknown to it"

    def _do(self, function: str, *arguments: object) -> None:
        result = getattr(self._library, function)(*arguments)
        if result:
            text = self._library.nvrtcGetErrorString(result).decode()
            raise PipelineError(f"{function} failed: {text}", where="NVRTC")


def _load(majors: Sequence[int]) -> ctypes.CDLL:
    for major in majors:
        for candidate in (*_wheel_libraries(major), f"libnvrtc.so.{major}"):
            try:
                return ctypes.CDLL(candidate)
            except OSError as error:
                log.debug("%s: %s", candidate, error)
    names = " or ".join(f"libnvrtc.so.{major}" for major in majors)
    raise BackendUnavailableError(
        f"{names} is not installed", where="cuda", fix="pip install 'zhcedge[rtx-cuda13]' (or [rtx-cuda12])"
    )


def _wheel_libraries(major: int) -> list[str]:
    """libnvrtc of NVIDIA's wheels, which lie beside each other in the namespace package `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None else None
    name = f"libnvrtc.so.{major}"
    return [str(path) for folder in folders or () for path in sorted(Path(folder).glob(f"*/lib/{name}"))]


# -- the cache -------------------------------------------------------------------------------------------------
def cache_folder() -> Path:
    """Where cubins are kept: the XDG cache folder (systemd sets it through CacheDirectory=)."""
    from_systemd = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]
    base = from_systemd or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "zhcedge" / "cubins"


def cubin_name(source: KernelSource, architecture: int, version: tuple[int, int]) -> str:
    """File name of a cached cubin: readable parts, then a hash of all that the cubin depends on."""
    parts = (source.text, source.header, *source.options, str(architecture), f"{version[0]}.{version[1]}")
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{source.name}-sm_{architecture}-{digest[:24]}.cubin"


def load_cubin(name: str, architecture: int, nvrtc: Nvrtc, folder: Path) -> bytes:
    """A kernel's cubin, from the cache or compiled and put there. A cache that can't be written is no error."""
    source = kernel_source(name)
    path = folder / cubin_name(source, architecture, nvrtc.version)
    try:
        return path.read_bytes()
    except OSError:
        cubin = nvrtc.compile(source, architecture)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=path.stem, delete=False) as file:
            file.write(cubin)
        Path(file.name).replace(path)
    except OSError as error:
        log.info("kernel %s is compiled anew at each start: %s", name, error)
    return cubin

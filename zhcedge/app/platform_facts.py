"""What a TensorRT plan depends on besides TensorRT and the GPU: the board's L4T release, or the NVIDIA driver."""

from __future__ import annotations

import re
from pathlib import Path

_L4T = Path("/etc/nv_tegra_release")
_DRIVER = Path("/proc/driver/nvidia/version")


def platform_name() -> str:
    """ "l4t-36.4.3" on a Jetson, "driver-580.65.06" elsewhere, "" without an NVIDIA driver."""
    return l4t_release(_text(_L4T)) or driver_version(_text(_DRIVER))


def l4t_release(text: str) -> str:
    """Of the first line of /etc/nv_tegra_release: "# R36 (release), REVISION: 4.3, GCID: ..."."""
    found = re.search(r"# R(\d+) \(release\), REVISION: ([\d.]+)", text)
    return f"l4t-{found[1]}.{found[2]}" if found else ""


def driver_version(text: str) -> str:
    """Of /proc/driver/nvidia/version: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ..."."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return f"driver-{found[1]}" if found else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

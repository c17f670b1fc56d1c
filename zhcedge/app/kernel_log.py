"""What the kernel said around a crash: GPU faults, processes killed for memory, disks that fail.

The daemon may not read the kernel's log (ProtectKernelLogs= of its unit): whoever looks at a report may.
"""

from __future__ import annotations

import subprocess

_WORDS = ("NVRM", "Xid", "nvgpu", "oom", "Out of memory", "Killed process", "segfault", "mmc", "I/O error")
_BEFORE_S, _AFTER_S = 60.0, 15.0
_COMMAND_S = 20.0


def kernel_lines(around_s: float | None = None) -> list[str]:
    """Telling lines of this boot, or of the minute before a moment in seconds since the epoch; none where the journal
    can't be read."""
    when = ["-b"]
    if around_s is not None:  # of whatever boot: -k would leave out the one that a reboot has ended
        when = ["--since", f"@{around_s - _BEFORE_S:.0f}", "--until", f"@{around_s + _AFTER_S:.0f}"]
    command = ["journalctl", "_TRANSPORT=kernel", "-q", "--no-pager", "--no-hostname", "-o", "short-iso", *when]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if any(word in line for word in _WORDS)]

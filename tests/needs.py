"""Why a test is skipped where something is missing.

A plain reason fails under ./tools/test --all, because what it names can be installed; "cannot run here: " stays for
what no installation gives (conftest.py).
"""

from __future__ import annotations

import platform


def wheel(text: str) -> str:
    """The reason for a package that the extra `all-tests` brings on x86_64 only: elsewhere there is no wheel."""
    return text if platform.machine() == "x86_64" else f"cannot run here: {text}"

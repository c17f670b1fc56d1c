"""How to run a module of ours in a new Python process."""

from __future__ import annotations

import sys


def command_for(module: str) -> list[str]:
    """The command line that runs `module` as a program, with this process's search path and nothing before it.

    `python -m` would put the working directory first: a file called av.py there would be imported, and run, in place
    of the library.
    """
    start = f"import sys; sys.path[:] = {sys.path!r}; import runpy; runpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-c", start]

"""The command line: `zhc-edge COMMAND`.

One module per subcommand in this package; each has `add_parser(subparsers)`, which registers a parser with
`set_defaults(run=function)`, where `function(arguments: argparse.Namespace) -> int` calls one use case of `app` and
returns the exit code. Only the module of the command that was typed is imported, so that `--help` and `version`
answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from zhcedge import __version__
from zhcedge.app.interpreter import leave
from zhcedge.core.errors import OutputError, ZhcEdgeError
from zhcedge.core.printing import printable

COMMANDS: dict[str, str] = {
    "demo": "run the whole thing on the bundled clip, with a broker of its own",
    "run": "run the daemon in the foreground with a configuration",
    "detect": "detect in images, folders, videos and streams, once, without a broker",
    "mqtt": "try the connection to the MQTT broker, step by step",
    "check": "check a configuration and print it resolved, with the origin of every value",
    "audit": "plant every violation, then measure copies and allocations of a real run",
    "bench": "measure the pipeline against its engine alone",
    "purge": "delete clips and snapshots, for privacy",
    "parity": "run a clip through two profiles and compare what they find",
    "events": "show past events and their hourly totals",
    "replay": "run a channel's rules over a recording and draw what they say",
    "model": "list, show, import and verify model bundles",
    "status": "show how the running daemon is doing",
    "config": "edit the configuration safely, compare, go back",
    "reload": "let the running daemon take its changed configuration",
    "crashes": "show what is known of processes that died",
    "backup": "keep what makes this box different from another one",
    "restore": "put a backup in place, of this box or of the one that it replaces",
    "factory-reset": "make the box forget what it was",
    "doctor": "look at everything that the daemon needs, with a fix for what is wrong",
    "channel": "add, remove, pause or resume a camera of the running daemon",
    "log-level": "set how much the running daemon logs",
    "version": "print the versions of this program and of what it finds",
}
"""Every subcommand and its line in `--help`; the command x-y lives in `zhcedge.cli.x_y`."""

EXIT_CODES = """\
exit codes:
    0  done; for a file source: its end was reached and every event was delivered; detect: every input was read
    1  the answer is no: the audit failed, the ledger's guard stopped the run, or a reload was taken back
    2  the command line makes no sense
    3  audit: unproved, this machine can't show everything that the verdict needs, or no frame came
   65  the video is damaged, or the model bundle is damaged or missing
   66  the input does not exist or may not be read
   69  a backend, a device or the MQTT broker is not there, or no daemon answers
   70  a fault inside: a stage failed, or a bug
   73  the output can't be written, or the folder of the outbox can't be used
   75  it can't be done at this moment and may work later
   78  the configuration has errors; every one of them is listed
  130  ended by Ctrl-C; not `run`, which drains on Ctrl-C and SIGTERM and ends with 0
"""

_INTERNAL_FAULT = 70
_BROKEN_PIPE = 128 + 13
_INTERRUPTED = 128 + 2
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a full or broken disk says; our own files' errors are translated where they are written."""
_LINE_END = "\n"  # of a list of problems


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `argv` is without the program's name; default: sys.argv[1:].

    A ZhcEdgeError becomes one line on stderr and its own exit code; with --debug its traceback comes first.
    """
    _open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in words
    try:
        arguments = _parser(words).parse_args(words)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except ZhcEdgeError as error:
        if is_debug:
            traceback.print_exc()
        return _failed(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # `zhc-edge check | head`: the reader has gone
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno not in _UNWRITTEN or error.filename is not None:
            return _bug()
        return _failed(OutputError(f"can't be written: {error.strerror}", where="standard output"))
    except Exception:  # noqa: BLE001 - the outermost boundary: a bug must not look like exit code 1, "the answer is no"
        return _bug()


def run_and_leave() -> NoReturn:
    """The program `zhc-edge`: `main`, then the end of the process."""
    leave(main())


def _failed(error: ZhcEdgeError) -> int:
    with contextlib.suppress(OSError):  # what can't be said can't be helped
        print(f"zhc-edge: {printable(str(error), keep=_LINE_END)}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return error.exit_code


def _bug() -> int:
    """Inside an except clause."""
    traceback.print_exc()
    print("zhc-edge: this is a bug; please report it with the lines above", file=sys.stderr)
    return _INTERNAL_FAULT


def _drop_output() -> None:
    """Forget what standard output does not take: Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_standard_streams() -> None:
    """Put /dev/null where the caller closed a standard stream: the next file that is opened would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    # A file's name may hold bytes that are no text, which must not end the command that shows it.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zhc-edge",
        description="Detects objects in video and publishes events over MQTT.",
        epilog=EXIT_CODES + "\n'zhc-edge COMMAND --help' explains a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    parser.add_argument("--version", action="version", version=f"zhc-edge {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if name == chosen:
            importlib.import_module(f"zhcedge.cli.{name.replace('-', '_')}").add_parser(subparsers)
            subparsers.choices[name].add_argument(
                "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks of errors"
            )
        else:
            subparsers.add_parser(name, help=summary)
    return parser

"""Errors of other processes of ours, as they arrive over a pipe (frame_commands.error_facts writes them)."""

from __future__ import annotations

from zhcedge.core.errors import PipelineError, ZhcEdgeError


class RemoteError(ZhcEdgeError):
    """An error that another process reported; it carries the exit code of the original."""


class RemotePipelineError(PipelineError):
    """A failed stage in another process: starting it again may help."""


def remote_error(facts: object) -> ZhcEdgeError:
    """The error that `facts` tells of."""
    fields = facts if isinstance(facts, dict) else {}
    code = int(fields.get("code", PipelineError.exit_code))
    kind = RemotePipelineError if code == PipelineError.exit_code else RemoteError
    error = kind(str(fields.get("what")), where=str(fields.get("where", "")), fix=str(fields.get("fix", "")))
    error.exit_code = code
    return error

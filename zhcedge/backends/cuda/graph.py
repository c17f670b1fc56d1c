"""Capture of a lane's work into one CUDA graph, and the proof that nothing in it leaves the GPU.

graph_rules.py says which graphs are refused. What kernels themselves write to mapped memory (the results) can't be seen
in a graph; the device declares it.

An engine may copy small constants of its own (shapes, offsets) from pinned memory in every run, and that memory goes
back to its allocator when the run ends: a replay would read what lies there later. So such copies are frozen: their
bytes, as they are right after the capture, go into device memory once, and the node reads from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from zhcedge.backends.cuda import _vendor
from zhcedge.backends.cuda._vendor import CopyNode, CudaCallError, GraphExec
from zhcedge.backends.cuda.context import CudaStream, gpu_error
from zhcedge.backends.cuda.graph_rules import GraphFacts, judge
from zhcedge.core.errors import PipelineError, ZhcEdgeError


def capture(
    stream: CudaStream,
    work: Callable[[], None],
    freeze: Callable[[bytes], int],
    table_address: int,
    batch: int,
    where: str,
) -> tuple[GraphExec, GraphFacts]:
    """Record `work`, which enqueues on `stream`, check it, and make it launchable. The context is pushed.

    Args:
        freeze: puts bytes into device memory for good and returns their address.
        table_address: of the descriptor table in pinned memory, whose copy is the one allowed.

    Raises PipelineError when the work can't be captured or the graph is refused; no graph is left behind.
    """
    graph = _record(stream, work, where)
    try:
        kinds = Counter(_vendor.node_kind(node) for node in _vendor.graph_nodes(graph))
        copies = [CopyNode(node) for node in _vendor.graph_nodes(graph) if _vendor.node_kind(node) == "MEMCPY"]
        frozen = judge(kinds, copies, table_address, batch, where)
        for position in frozen:
            copy = copies[position]
            copy.read_from_device(freeze(_vendor.read_host(copy.source, copy.size)))
        parameters = sum(copy.size for copy in copies if copy.source == table_address)
        facts = GraphFacts(tuple(sorted(kinds.items())), parameters, sum(copies[p].size for p in frozen))
        return GraphExec(graph, stream.handle), facts
    except CudaCallError as error:
        raise gpu_error(error, where) from error
    finally:
        _vendor.destroy_graph(graph)


def _record(stream: CudaStream, work: Callable[[], None], where: str) -> object:
    try:
        _vendor.begin_capture(stream.handle)
        try:
            work()
        except ZhcEdgeError:
            _abandon(stream)
            raise
        graph: object = _vendor.end_capture(stream.handle)
        return graph
    except CudaCallError as error:
        raise PipelineError(
            f"the stages can't be captured into a graph: {error}",
            where=where,
            fix="something synchronised or allocated during the capture",
        ) from error


def _abandon(stream: CudaStream) -> None:
    """End a failed capture, so that the stream works again."""
    try:
        _vendor.destroy_graph(_vendor.end_capture(stream.handle))
    except CudaCallError:
        return  # an invalidated capture has no graph; the stage's own error is the one to show

"""Images, frames, detections and the ledger's words: plain values without behaviour of a backend.

Generic in B, the buffer type of a backend (a numpy array on the CPU, a device address on a GPU). Nothing here
looks inside B.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

B = TypeVar("B")

MAX_DETECTIONS = 256
"""Most detections one frame may carry; 24 bytes each keep a frame's results at 6 KiB, under the ledger's 8 KiB."""

DETECTION_DTYPE = np.dtype([("box", "<f4", (4,)), ("score", "<f4"), ("label", "<i4")])
"""One detection, 24 bytes: x1, y1, x2, y2 in pixels of the source frame; score 0..1; index into the labels."""

RESULT_DTYPE = np.dtype([("count", "<i4"), ("candidates", "<i4"), ("detections", DETECTION_DTYPE, (MAX_DETECTIONS,))])
"""Results of one frame: valid detections (best score first), boxes above the threshold before NMS, the boxes."""

DetectionArray = npt.NDArray[np.void]
"""An array of DETECTION_DTYPE, shape [count]."""


class MemoryDomain(str, enum.Enum):
    """Where a buffer lives, which decides what a copy to or from it costs."""

    HOST = "host"
    PINNED = "pinned"
    DEVICE = "device"
    UNIFIED = "unified"
    NVMM = "nvmm"
    STORAGE = "storage"  # a file or a socket: only bitstreams come from or go there


class PixelFormat(str, enum.Enum):
    NV12 = "nv12"  # Y plane, then interleaved U,V at half size
    I420 = "i420"  # Y, U, V planes
    P010 = "p010"  # NV12 with 16-bit samples, 10 significant bits on top
    RGB24 = "rgb24"


class Layout(str, enum.Enum):
    PITCH_LINEAR = "pitch-linear"
    BLOCK_LINEAR = "block-linear"


class ColorMatrix(str, enum.Enum):
    """YCbCr to RGB coefficients (ITU-R BT.601-7 and BT.709-6)."""

    BT601 = "bt601"
    BT709 = "bt709"


@dataclass(frozen=True)
class Plane(Generic[B]):
    """One plane of a surface. `buffer` starts at the first pixel; rows are `pitch_bytes` apart."""

    buffer: B
    width_bytes: int
    rows: int
    pitch_bytes: int


@dataclass(frozen=True)
class ImageFormat:
    """What the bytes of an image mean. Sizes are in pixels of the luma plane and may be odd."""

    width_px: int
    height_px: int
    pixel_format: PixelFormat = PixelFormat.NV12
    layout: Layout = Layout.PITCH_LINEAR
    matrix: ColorMatrix = ColorMatrix.BT601
    is_full_range: bool = False


@dataclass(frozen=True)
class Surface(Generic[B]):
    """Image memory: planes, what they mean, and the domain they live in."""

    planes: tuple[Plane[B], ...]
    format: ImageFormat
    domain: MemoryDomain


class FrameInfo(NamedTuple):
    """Facts of one frame. A tuple, because one is made for every frame and a frozen dataclass takes thrice as long.

    Attributes:
        channel: index of the channel in this run.
        sequence: 0, 1, 2, ... within the channel, dropped frames counted.
        capture_time_ns: wall clock, nanoseconds since the epoch; for a file, when it was read.
        read_time_ns: monotonic clock, nanoseconds, when the decoder handed the frame over.
        media_time_s: the frame's own presentation time in its stream, seconds from the start; -1 if unknown.
        clock_synced: whether the wall clock was synchronised when the frame was captured.
    """

    channel: int
    sequence: int
    capture_time_ns: int
    read_time_ns: int
    media_time_s: float = -1.0
    clock_synced: bool = False


@dataclass(frozen=True)
class Tensor(Generic[B]):
    """A dense float tensor of a lane: C order, `dtype` is a numpy name such as "float32"."""

    name: str
    buffer: B
    shape: tuple[int, ...]
    dtype: str


class HeadKind(str, enum.Enum):
    """How a model's output tensor encodes boxes."""

    YOLO_ANCHOR_FREE = "yolo-anchor-free"
    """[N, 4 + classes, anchors]: cx, cy, w, h in input pixels, then class scores 0..1 (YOLOv8 layout)."""

    YOLO_ANCHOR_FREE_ROWS = "yolo-anchor-free-rows"
    """[N, anchors, 4 + classes]: the same, transposed."""

    YOLO_OBJECTNESS = "yolo-objectness"
    """[N, anchors, 5 + classes]: cx, cy, w, h, objectness, class scores; a score is their product (YOLOv5 layout)."""

    YOLO_OBJECTNESS_COLUMNS = "yolo-objectness-columns"
    """[N, 5 + classes, anchors]: the same, transposed."""

    END_TO_END = "end-to-end"
    """[N, boxes, 6]: x1, y1, x2, y2 in input pixels, score, class; NMS is done or not needed (YOLOv10, YOLO26)."""

    @property
    def is_rows(self) -> bool:
        """Whether the values of one anchor are neighbours in memory: the last axis, not the middle one."""
        return self not in (HeadKind.YOLO_ANCHOR_FREE, HeadKind.YOLO_OBJECTNESS_COLUMNS)

    @property
    def has_objectness(self) -> bool:
        return self in (HeadKind.YOLO_OBJECTNESS, HeadKind.YOLO_OBJECTNESS_COLUMNS)

    def values_and_anchors(self, output_shape: tuple[int, int, int]) -> tuple[int, int]:
        """(values of an anchor, anchors) of an output of this kind."""
        _, middle, last = output_shape
        return (last, middle) if self.is_rows else (middle, last)


@dataclass(frozen=True)
class ModelFacts:
    """What pre- and post-processing must know of a model.

    Attributes:
        name: the bundle's name.
        sha256: of the model file.
        labels: class names by index.
        input_name, output_name: tensor names in the graph.
        input_shape: [batch, 3, height, width].
        output_shape: [batch, values, anchors] or [batch, anchors, values], as the head says.
        scale: factor from 0..255 to the values that the graph expects.
        pad_value: 0..255, fills the letterbox borders before scaling.
        head: box encoding of the output.
        score_threshold, nms_iou: defaults that suit the model.
        has_free_batch: the graph takes any batch; the shapes hold the one that lanes are made for.
        input_dtype, output_dtype: "float32" or "float16".
        is_bgr: the input's planes are B, G, R instead of R, G, B.
    """

    name: str
    sha256: str
    labels: tuple[str, ...]
    input_name: str
    output_name: str
    input_shape: tuple[int, int, int, int]
    output_shape: tuple[int, int, int]
    scale: float
    pad_value: int
    head: HeadKind
    score_threshold: float
    nms_iou: float
    has_free_batch: bool = False
    input_dtype: str = "float32"
    output_dtype: str = "float32"
    is_bgr: bool = False

    @property
    def classes(self) -> int:
        """How many classes the output tells apart; an end-to-end head does not say, its labels do."""
        values, _ = self.head.values_and_anchors(self.output_shape)
        return len(self.labels) if self.head is HeadKind.END_TO_END else values - 4 - self.head.has_objectness

    @property
    def anchors(self) -> int:
        """How many boxes the output holds before anything is filtered."""
        return self.head.values_and_anchors(self.output_shape)[1]

    def with_batch(self, batch: int) -> ModelFacts:
        """The same model for lanes of `batch` frames. Only sensible where the graph leaves the batch open."""
        return replace(self, input_shape=(batch, *self.input_shape[1:]), output_shape=(batch, *self.output_shape[1:]))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """What programs are compiled for, growing: powers of two, and the lane's own batch."""
        largest = self.input_shape[0]
        return (*(1 << power for power in range((largest - 1).bit_length())), largest)


@dataclass(frozen=True)
class DetectorSettings:
    """Post-processing values of one run: both thresholds 0..1; labels kept, or None for all of them."""

    score_threshold: float
    nms_iou: float
    label_indices: tuple[int, ...] | None = None


class Agent(str, enum.Enum):
    """Who moves the bytes of a ledger row."""

    CPU = "CPU"
    GPU = "GPU"
    COPY_ENGINE = "copy engine"
    VIC = "VIC"
    NVDEC = "NVDEC"
    NVENC = "NVENC"
    NVJPG = "NVJPG"


class Payload(str, enum.Enum):
    PIXELS = "pixels"
    TENSOR = "tensor"
    BITSTREAM = "bitstream"
    RESULTS = "results"
    PARAMETERS = "parameters"


class Provenance(str, enum.Enum):
    """How a ledger row is known: from strongest to weakest."""

    MEASURED = "measured"  # callbacks of the driver or the allocator
    STATIC = "static"  # nodes of the captured graph
    DERIVED = "derived"  # layout times count
    DECLARED = "declared"  # a driver's documented copy, with its source


@dataclass(frozen=True)
class Hop:
    """One movement of bytes that a backend says it makes for every frame (or packet)."""

    name: str
    agent: Agent
    source: MemoryDomain
    destination: MemoryDomain
    payload: Payload
    bytes_per_frame: int
    provenance: Provenance
    reason: str = ""
    """Why the copy exists; for a declared row, the file and line that shows it."""


class ViolationKind(str, enum.Enum):
    """What must not happen in the active phase."""

    HOST_ARRAY = "host array"  # a numpy buffer of at least GUARDED_BYTES
    HOST_OBJECT = "host object"  # a Python object of 256 KiB or more: a copy of a picture
    ARENA_GROWTH = "arena growth"  # our own arena was asked for memory after the seal
    DEVICE_ALLOCATION = "device allocation"
    ASYNC_ALLOCATION = "async allocation"
    DEVICE_FREE = "device free"
    PINNED_ALLOCATION = "pinned allocation"
    HOST_COPY_2D = "2-D copy to the host"
    HOST_COPY = "copy of a frame to the host"
    DEVICE_SYNCHRONISE = "device synchronisation"


GUARDED_BYTES = 64 * 1024
"""A host buffer of ours from this size on is a violation in the active phase (bitstream packets excepted)."""

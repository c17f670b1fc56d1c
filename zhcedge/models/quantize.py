"""Post-training quantisation of a model to int8 with explicit Q/DQ pairs, on the CPU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zhcedge.core.errors import ModelError
from zhcedge.models._vendor_quantization import FloatModel, Floats, QuantisedModel, TensorReader
from zhcedge.models.calibration import Histogram, Method, Sample, Samples, check_count, digest_of_all
from zhcedge.models.graph import Sites, find_sites, leave_float
from zhcedge.models.qdq_rules import rule_faults

TABLE_NAME = "calibration.json"
"""File of a quantised bundle: ranges, and which pictures they come from."""

_CORRECTION_SAMPLES = 32  # a mean over every pixel of these is steady to a percent of the error


@dataclass(frozen=True)
class Calibration:
    """Ranges of activations, and where they come from.

    Attributes:
        thresholds: largest magnitude that is represented, by tensor; the scale is a 127th of it.
        digests: sha256 of every picture, sorted.
    """

    method: Method
    thresholds: dict[str, float]
    digests: tuple[str, ...]

    @property
    def data_sha256(self) -> str:
        return digest_of_all(self.digests)

    def as_json(self) -> str:
        """The calibration table's text."""
        data = {
            "method": self.method.value,
            "data_sha256": self.data_sha256,
            "thresholds": {name: float(np.float32(limit)) for name, limit in self.thresholds.items()},
            "frames": list(self.digests),
        }
        return json.dumps(data, indent=1) + "\n"


@dataclass(frozen=True)
class Collected:
    """What was seen on the pictures: enough for every method."""

    model: FloatModel
    sites: Sites
    histograms: dict[str, Histogram]
    digests: tuple[str, ...]

    def calibrate(self, method: Method) -> Calibration:
        thresholds = {tensor: histogram.threshold(method) for tensor, histogram in self.histograms.items()}
        return Calibration(method, thresholds, self.digests)


def read_digests(table: str, where: str) -> frozenset[str]:
    """Digests of the pictures in a calibration table. Raises ModelError when it is none."""
    try:
        frames = json.loads(table)["frames"]
        return frozenset(str(digest) for digest in frames)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError("is no calibration table", where=where, fix="copy the bundle again") from error


def open_float_model(path: Path) -> FloatModel:
    """A model that can be quantised. Raises ModelError and BackendUnavailableError."""
    return FloatModel(path)


def collect(
    model: FloatModel, samples: Samples, parts: Iterable[str] = (), advance: Callable[[], None] = lambda: None
) -> Collected:
    """Run the model on every picture and see how large its activations become. Blocks.

    Args:
        parts: what stays in floating point besides the head; of graph.PARTS.
        advance: called after each picture.

    Raises ModelError for too few pictures, or for a model without anything to quantise.
    """
    sites = find_sites(model.graph, leave_float(model.graph, parts))
    if not sites.nodes:
        raise ModelError(
            "has no convolution or product of matrices outside of its head: there is nothing to quantise",
            where="quantisation",
        )
    reader = model.reader(sites.tensors)
    histograms = {tensor: Histogram() for tensor in sites.tensors}
    digests = []
    for sample in samples():
        for tensor, values in reader.read(sample.values).items():
            histograms[tensor].add(values)
        digests.append(sample.digest)
        advance()
    check_count(len(digests), "calibration")
    return Collected(model, sites, histograms, tuple(sorted(digests)))


def quantise(
    collected: Collected,
    calibration: Calibration,
    samples: Samples | None,
    advance: Callable[[], None] = lambda: None,
    parts: Iterable[str] | None = None,
) -> QuantisedModel:
    """The model with Q/DQ pairs, its biases corrected. Blocks.

    Rounding and cutting off shift the mean of each channel; the shift is measured on pictures and added to the bias
    (Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction", section 4.2, the
    empirical form).

    Args:
        samples: for the correction; None leaves the biases as they are.
        advance: called after each picture, `correction_count` times.
        parts: what stays in floating point instead of what it was collected for; no less.

    Raises ModelError when the result breaks the rules of qdq_rules: a fault of this program, or of the library.
    """
    sites = collected.sites
    if parts is not None:
        sites = find_sites(collected.model.graph, leave_float(collected.model.graph, parts))
    thresholds = {tensor: calibration.thresholds[tensor] for tensor in sites.tensors}
    model = collected.model.quantised(sites, thresholds)
    if samples is not None:
        count = len(calibration.digests)
        step = -(-count // _CORRECTION_SAMPLES)
        chosen = itertools.islice(samples(), 0, None, step)
        model.correct_biases(_mean_errors(model.error_reader(), chosen, advance))
    faults = rule_faults(model.graph, model.constant)
    if faults:
        raise ModelError(f"the quantised graph breaks {len(faults)} rules: {faults[0]}", where="quantisation")
    return model


def correction_count(samples: int) -> int:
    """How many of so many pictures the correction of biases looks at."""
    return -(-samples // -(-samples // _CORRECTION_SAMPLES)) if samples else 0


def _mean_errors(reader: TensorReader, samples: Iterable[Sample], advance: Callable[[], None]) -> dict[str, Floats]:
    sums: dict[str, Floats] = {}
    count = 0
    for sample in samples:
        for name, mean in reader.read(sample.values).items():
            sums[name] = sums[name] + mean if name in sums else mean.copy()
        count += 1
        advance()
    return {name: total / np.float32(count) for name, total in sums.items()}

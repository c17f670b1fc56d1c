"""Runs in modelopt's own environment: one int8 quantisation of an ONNX file, told as JSON by the only argument.

{"model": path, "data": path of an .npy [pictures, 3, height, width], "out": path, "method": "entropy" | "max",
"exclude": names of nodes that stay in floating point}. Everything else is modelopt's default, but that the rest stays
float32, as in a bundle's file. modelopt writes its guesses of shapes into the file that it reads: give it a copy.
"""

from __future__ import annotations

import json
import re
import sys

import numpy as np
from modelopt.onnx.quantization import quantize


def main() -> None:
    order = json.loads(sys.argv[1])
    quantize(
        order["model"],
        quantize_mode="int8",
        calibration_data=np.load(order["data"]),
        calibration_method=order["method"],
        calibration_eps=["cpu"],
        nodes_to_exclude=[f"^{re.escape(name)}$" for name in order["exclude"]],
        output_path=order["out"],
        high_precision_dtype="fp32",
        log_level="WARNING",
    )


if __name__ == "__main__":
    main()

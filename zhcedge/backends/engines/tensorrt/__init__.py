"""TensorRT and TensorRT for RTX: plans are built and run by the same code; versions.py holds what differs."""

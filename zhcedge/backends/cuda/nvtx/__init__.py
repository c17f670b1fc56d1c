"""Ranges of the frame path for NVIDIA's profilers, which watch the process from outside."""

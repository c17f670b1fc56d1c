"""JPEG encoding from device memory by nvJPEG, which runs on every NVIDIA GPU, also where there is no NVENC."""

"""Decoding and encoding on the GPU's own video engines (NVDEC, NVENC) and with nvJPEG."""

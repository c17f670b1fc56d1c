"""The CUDA device: context, memory, kernels and programs of one NVIDIA GPU. Buffers are device addresses (int)."""

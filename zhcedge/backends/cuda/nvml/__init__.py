"""NVIDIA's management library: what the board itself counts."""

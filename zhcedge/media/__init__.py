"""Bitstreams, hardware-neutral: demultiplexing, kept packets, timelines, CPU decoding, writing MP4."""

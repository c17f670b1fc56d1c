"""Types, ports, errors and the lifecycle: what every other package may import and what imports nothing of ours."""

"""The ledger's eyes on a CUDA GPU: CUPTI callbacks of the driver API."""

"""The Python client: httpx, msgspec and numpy; torch only where a caller brings tensors."""

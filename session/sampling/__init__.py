"""Sampling: requests for tokens or scores, unordered and concurrent."""

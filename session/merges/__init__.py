"""Merge jobs: a merged version made from a state or an adapter."""

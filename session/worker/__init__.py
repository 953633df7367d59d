"""The process that owns an engine."""

"""Weights in, weights out. Nothing here knows of the registry or of sessions."""

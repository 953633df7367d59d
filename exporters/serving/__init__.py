"""Serving targets: how a directory of model files becomes a process that answers."""

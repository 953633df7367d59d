"""Single-device computation in torch: no database, no HTTP, no threads."""

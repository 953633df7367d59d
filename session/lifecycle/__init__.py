"""Training sessions: their names, states and measured steps."""

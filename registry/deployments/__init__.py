"""A version served under a stable public name: promote, roll back, history, and who runs it."""

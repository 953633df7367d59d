"""The log of a session: accept, claim, complete."""

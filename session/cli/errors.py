class CommandFailed(Exception):
    """What a command found to be wrong by itself. The message is the line that is printed."""

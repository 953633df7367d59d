"""The commands, one subject a file. Each reads its arguments, calls one thing, prints."""

"""`modelyard`, and the same as `python -m session`."""

from session.cli.root import main

if __name__ == "__main__":
    main()

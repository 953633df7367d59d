"""Measurements beside peers, for `make bench`. Not part of the wheel."""

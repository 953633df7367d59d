"""What of a caller's numbers are numbers: the port's types are not enforced by Python."""

import math
from numbers import Integral, Real


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """Also as a float: an integer may be too large for one."""
    if not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False

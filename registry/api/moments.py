"""Times in a question: with a zone, and in years that every database can hold."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime

from registry.kit.clock import now, stamp

_LAST_YEAR = 2200


def _in_range(moment: datetime) -> datetime:
    if not 1970 <= moment.year <= _LAST_YEAR:
        raise ValueError(f"not between the years 1970 and {_LAST_YEAR}")
    return moment


def _to_come(moment: datetime) -> datetime:
    if moment <= now():
        raise ValueError(f"{stamp(moment)} is in the past")
    return moment


Asked = Annotated[AwareDatetime, AfterValidator(_in_range)]
ToCome = Annotated[Asked, AfterValidator(_to_come)]

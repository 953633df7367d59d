"""How long a session may be what it is."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from session.lifecycle.model import TrainingSession


@dataclass(frozen=True, slots=True)
class Lifetimes:
    gap: timedelta
    """Later operations wait so long for one that is missing."""
    idle: timedelta
    age: timedelta
    results: timedelta
    """Results are kept so long after the end."""

    def expiry(self, session: TrainingSession) -> datetime | None:
        """When it expires if nothing is asked of it until then. None once it has ended."""
        if not session.is_live:
            return None
        return min(session.last_active_at + self.idle, session.created_at + self.age)


def spoken(span: timedelta) -> str:
    """In the largest unit that it is whole in: `90 minutes`, `4 hours`."""
    seconds = round(span.total_seconds())
    units = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
    name, size = next(unit for unit in units if seconds % unit[1] == 0)
    count = seconds // size
    return f"{count} {name}" if count == 1 else f"{count} {name}s"

"""What a benchmark says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured. Without a peer, or without its program, `theirs` is None."""

    what: str
    ours: float
    unit: str
    peer: str = "-"
    theirs: float | None = None
    more_is_better: bool = True
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if not self.theirs or not self.ours:
            return None
        return self.ours / self.theirs if self.more_is_better else self.theirs / self.ours

    def cells(self) -> tuple[str, ...]:
        theirs, ratio = _number(self.theirs), _number(self.ratio)
        return (self.what, self.peer, theirs, _number(self.ours), self.unit, ratio, self.note)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"

"""Two versions compared."""

from collections.abc import Mapping

import msgspec

from session.client.connection import Connection
from session.client.errors import ServerError, api_error
from session.client.records import (
    Difference,
    TensorChange,
    WeightChange,
    WeightProblem,
    WeightTotal,
)
from session.client.registry import version_path

_STATUS: Mapping[str, int] = {"unavailable": 503}
_LINE = msgspec.json.Decoder(TensorChange | WeightTotal | WeightProblem)


async def difference(connection: Connection, ref: str, against: str) -> Difference:
    return await connection.get(f"{version_path(ref)}/diff", Difference, {"against": against})


async def weight_change(connection: Connection, ref: str, against: str) -> WeightChange:
    """The last line says that the answer is whole, or why it is not."""
    params = {"against": against, "tensors": "true"}
    text = await connection.get_long(f"{version_path(ref)}/diff", params)
    found = [_LINE.decode(line) for line in text.splitlines()]
    tensors = [line for line in found if isinstance(line, TensorChange)]
    match found[-1:]:
        case [WeightTotal() as total]:
            return WeightChange(
                tensors=tensors, compared=total.compared, difference=total.difference
            )
        case [WeightProblem() as problem]:
            raise api_error(_STATUS.get(problem.kind, 500), problem.detail, problem.kind)
    raise ServerError(500, f"the comparison of {ref} was cut after {len(tensors)} tensors")

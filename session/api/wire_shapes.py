"""The one form of operations and samples, as the OpenAPI document shows it."""

from typing import Any

import msgspec

from session import wire

Document = dict[str, Any]
_FORMS = (wire.Submission, wire.Sampling, wire.Operation, wire.Samples)
_refs, _shapes = msgspec.json.schema_components(
    _FORMS, ref_template="#/components/schemas/wire.{name}"
)
SHAPES: Document = {f"wire.{name}": shape for name, shape in _shapes.items()}
SHAPES["wire.Submission"]["examples"] = [
    {"number": 1, "token": "a1", "body": {"type": "optim_step", "learning_rate": 0.001}}
]
SHAPES["wire.Sampling"]["examples"] = [
    {
        "session": "first",
        "token": "s1",
        "prompt": {"dtype": "int64", "data": [504, 2354]},
        "max_tokens": 16,
    }
]


def exchange(
    *, taken: type[msgspec.Struct] | None = None, answered: type[msgspec.Struct], status: int
) -> Document:
    """`openapi_extra` of a route that reads and writes this form, as MessagePack or JSON."""
    answers = {str(status): {"content": _content(answered)}}
    if taken is None:
        return {"responses": answers}
    return {"responses": answers, "requestBody": {"required": True, "content": _content(taken)}}


def _content(form: type[msgspec.Struct]) -> Document:
    schema = dict(zip(_FORMS, _refs, strict=True))[form]
    return {"application/json": {"schema": schema}, wire.MEDIA: {"schema": schema}}

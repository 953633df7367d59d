"""What the OpenAPI document says of every route by itself: who may call it and what may go wrong.

Both come from the route (its permission, its parameters, its body), so that a new one is described
without a word of its own, and a test finds an answer that this does not foresee.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from registry.access.actor import Role
from registry.api import idempotency
from registry.api.auth import permissions
from registry.api.examples import add_examples
from registry.kit.errors import Kind
from registry.kit.rest import STATUS

Document = dict[str, Any]
_METHODS = frozenset(("get", "put", "post", "patch", "delete"))
_REF = "#/components/schemas/{model}"
_TOO_LARGE = 413
_EXAMPLE: Document = {
    "title": "GroupNotFound",
    "status": 404,
    "detail": "no group named 'fact'",
    "kind": "not_found",
}
_ETAG = {
    "ETag": {"description": "Its revision, for If-Match.", "schema": {"type": "string"}},
}
_HEADERS: Mapping[int, Document] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    409: {"Retry-After": {"description": "Seconds, where it helps.", "schema": {"type": "string"}}},
    503: {"Retry-After": {"description": "Seconds, where known.", "schema": {"type": "string"}}},
}


class Problem(BaseModel):
    """An error, by RFC 9457."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})

    title: str
    status: int
    detail: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How the routes below `prefix` tell an error."""

    prefix: str
    media: str
    schema: type[BaseModel]
    statuses: Mapping[Kind, int]


NATIVE = ErrorForm("/", "application/problem+json", Problem, STATUS)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as the document has it."""

    path: str
    method: str
    role: Role | None
    said: Document

    def takes(self, name: str) -> bool:
        return any(each["name"].lower() == name for each in self.said.get("parameters", ()))

    @property
    def kinds(self) -> Iterator[Kind]:
        """What may go wrong. A change may meet anything; a question, less."""
        changes, has_body = self.method != "get", "requestBody" in self.said
        names_things = "{" in self.path
        may: Mapping[Kind, bool] = {
            Kind.malformed: changes or self.takes("cursor"),
            Kind.unauthenticated: self.role is not None,
            Kind.forbidden: self.role not in (None, Role.viewer),
            Kind.not_found: changes or names_things,
            Kind.conflict: changes or names_things,
            Kind.precondition_failed: self.takes("if-match"),
            Kind.precondition_required: self.takes("if-match"),
            Kind.invalid: has_body or self.role is not None,
            Kind.limit_exceeded: changes,
            Kind.unavailable: self.role is not None,
            Kind.internal: self.role is not None,
        }
        return (kind for kind, is_so in may.items() if is_so)


def describe(
    app: FastAPI, *, wires: tuple[ErrorForm, ...] = (), shapes: Mapping[str, Document] | None = None
) -> None:
    """Complete the document that `app` answers. `wires` tell errors in forms of their own;
    `shapes` are schemas that routes name and Pydantic does not know."""
    build = app.openapi

    def complete() -> Document:
        if app.openapi_schema is None:
            document = build()
            document["components"]["schemas"].update(deepcopy(shapes or {}))
            _complete(document, permissions(app), (*wires, NATIVE))
            add_examples(document)
        return app.openapi_schema or {}

    app.openapi = complete  # type: ignore[method-assign]  # as FastAPI's own pages say to do it


def _complete(
    document: Document,
    roles: Mapping[tuple[str, str], Role],
    forms: tuple[ErrorForm, ...],
) -> None:
    schemas = document["components"]["schemas"]
    for form in forms:
        schemas.update(_schemas(form.schema))
    for operation in _operations(document, roles):
        form = next(each for each in forms if operation.path.startswith(each.prefix))
        said = operation.said
        if operation.role is not None:
            said["x-permission"] = operation.role
            if operation.method != "get":
                said.setdefault("parameters", []).append(dict(idempotency.PARAMETER))
        answers = said["responses"]
        answers.pop("422", None)  # FastAPI's own form, which no route answers
        answers.update(_errors(operation, form))
        said["responses"] = dict(sorted(answers.items()))
        _require_revision(said)
    _tell_etags(document)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)


def _operations(document: Document, roles: Mapping[tuple[str, str], Role]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method in _METHODS & methods.keys():
            role = roles.get((method.upper(), path))
            yield Operation(path, method, role, methods[method])


def _errors(operation: Operation, form: ErrorForm) -> dict[str, Document]:
    kinds: dict[int, list[str]] = {}
    for kind in operation.kinds:
        kinds.setdefault(form.statuses[kind], []).append(f"`{kind}`")
    if "requestBody" in operation.said:
        kinds.setdefault(_TOO_LARGE, []).append("the body is too large")
    return {
        str(status): {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(reasons)}",
            "content": {form.media: {"schema": {"$ref": _REF.format(model=form.schema.__name__)}}},
            **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
        }
        for status, reasons in kinds.items()
    }


def _require_revision(said: Document) -> None:
    """Without If-Match such a route answers 428, unless it takes If-None-Match instead."""
    parameters = {each["name"].lower(): each for each in said.get("parameters", ())}
    if "if-match" in parameters and "if-none-match" not in parameters:
        parameters["if-match"]["required"] = True
    for name in ("if-match", "if-none-match"):
        if name in parameters:
            parameters[name]["schema"] = {"type": "string"}


def _tell_etags(document: Document) -> None:
    """Where a change of a thing takes If-Match, what answers the thing has the ETag for it."""
    for methods in document["paths"].values():
        if not any(_takes_if_match(methods[method]) for method in _METHODS & methods.keys()):
            continue
        for method in _METHODS & methods.keys():
            for status in ("200", "201"):
                if status in methods[method]["responses"]:
                    methods[method]["responses"][status]["headers"] = _ETAG


def _takes_if_match(said: Document) -> bool:
    return any(each["name"].lower() == "if-match" for each in said.get("parameters", ()))


def _schemas(model: type[BaseModel]) -> dict[str, Document]:
    schema = model.model_json_schema(ref_template=_REF)
    return {**schema.pop("$defs", {}), model.__name__: schema}

"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from registry.api.openapi import ErrorForm
from registry.kit.errors import Kind, ServiceError
from registry.kit.rest import Replayed, database_trouble, error_headers, log_whole, unexpected
from registry.kit.text import printable
from registry.kit.trouble import DatabaseTrouble

STATUS: Mapping[Kind, tuple[int, str]] = {
    Kind.malformed: (400, "invalid_request_error"),
    Kind.invalid: (400, "invalid_request_error"),
    Kind.unauthenticated: (401, "authentication_error"),
    Kind.forbidden: (403, "permission_error"),
    Kind.not_found: (404, "not_found_error"),
    Kind.conflict: (409, "conflict_error"),
    Kind.precondition_failed: (409, "conflict_error"),
    Kind.precondition_required: (400, "invalid_request_error"),
    Kind.limit_exceeded: (429, "rate_limit_error"),
    Kind.unavailable: (503, "server_error"),
    Kind.internal: (500, "server_error"),
}
_CODES: Mapping[Kind, str] = {
    Kind.unauthenticated: "invalid_api_key",
    Kind.not_found: "model_not_found",
}


class OpenAIFault(BaseModel):
    message: str
    type: str = Field(examples=["not_found_error"])
    param: str | None
    code: str | None = Field(examples=["model_not_found"])


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it."""

    error: OpenAIFault


ERROR_FORM = ErrorForm(
    prefix="/openai/",
    media="application/json",
    schema=OpenAIError,
    statuses={kind: status for kind, (status, _) in STATUS.items()},
)


class InvalidRequest(ServiceError):
    kind = Kind.invalid
    code: str | None = None

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}")
        self.param = param


class ContextExceeded(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(self, param: str, *, context: int, prompt: int, wanted: int | None) -> None:
        asked = f" and {wanted} are asked for" if wanted else ""
        super().__init__(
            param, f"this model's context is {context} tokens; the prompt has {prompt}{asked}"
        )


class ModelNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, model: str) -> None:
        super().__init__(f"the model {model!r} does not exist")


class ModelFilesMissing(ServiceError):
    kind = Kind.unavailable
    param = "model"

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"the files of the base model of {model!r} cannot be read: {reason}")


def error_body(error: ServiceError) -> dict[str, Any]:
    """`param` and `code` are null where the error does not know them."""
    param = "model" if error.kind == Kind.not_found else None
    return {
        "error": {
            "message": printable(error.message),
            "type": STATUS[error.kind][1],
            "param": getattr(error, "param", param),
            "code": getattr(error, "code", _CODES.get(error.kind)),
        }
    }


def error_answer(error: ServiceError) -> JSONResponse:
    status = STATUS[error.kind][0]
    return JSONResponse(error_body(error), status, error_headers(error))


class OpenAIRoute(APIRoute):
    """A route whose every error, that of its dependencies too, has OpenAI's shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def translated(request: Request) -> Response:
            try:
                return await handle(request)
            except Replayed as found:
                return found.response
            except ServiceError as error:
                await log_whole(error, path=request.url.path)
                return error_answer(error)
            except RequestValidationError as error:
                return error_answer(_invalid(error))
            except HTTPException as error:  # of the body: too large, or not readable
                told = InvalidRequest("body", error.detail)
                return JSONResponse(error_body(told), error.status_code)
            except DatabaseTrouble as error:
                return error_answer(await database_trouble(request, error))
            except Exception as error:  # noqa: BLE001 - the edge, which logs it
                return error_answer(await unexpected(request, error))

        return translated


def _invalid(error: RequestValidationError) -> InvalidRequest:
    """The first complaint: a union of forms would otherwise list one for each."""
    found = error.errors()[0]
    path = [] if found["type"] == "json_invalid" else found["loc"][1:]  # it begins with "body"
    where = ".".join(map(str, path)) or "body"
    return InvalidRequest(where, found["msg"])

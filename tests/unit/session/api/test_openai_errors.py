import httpx
import pytest
from fastapi import APIRouter, FastAPI

from registry.kit.errors import Kind
from registry.kit.trouble import DatabaseTrouble
from session.api.openai_errors import (
    STATUS,
    ContextExceeded,
    ModelNotFound,
    OpenAIRoute,
    error_body,
)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_a_status_and_a_type(kind: Kind) -> None:
    status, name = STATUS[kind]
    assert 400 <= status < 600
    assert name.endswith("_error")


def test_an_error_names_field_and_code() -> None:
    error = ContextExceeded("messages", context=128, prompt=150, wanted=None)
    assert error_body(error)["error"] == {
        "message": "messages: this model's context is 128 tokens; the prompt has 150",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }


def test_what_is_not_found_is_the_model() -> None:
    found = error_body(ModelNotFound("gpt"))["error"]
    assert (found["type"], found["param"], found["code"]) == (
        "not_found_error",
        "model",
        "model_not_found",
    )


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        (ValueError("a bug"), 500, "unexpected error; the server log has it"),
        (DatabaseTrouble("database is locked"), 503, "busy or not reachable"),
        (DatabaseTrouble("disk is full", is_full=True), 503, "storage is full"),
    ],
)
async def test_faults_of_ours_have_openais_shape(fault: Exception, status: int, said: str) -> None:
    router = APIRouter(route_class=OpenAIRoute)

    @router.get("/")
    async def fail() -> None:
        raise fault

    app = FastAPI()
    app.include_router(router)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/")
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, "server_error")
    assert said in error["message"]

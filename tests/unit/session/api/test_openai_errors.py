import pytest

from registry.kit.errors import Kind
from session.api.openai_errors import STATUS, ContextExceeded, ModelNotFound, error_body


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

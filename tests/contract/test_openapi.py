"""The OpenAPI document is kept: Schemathesis asks everything that it allows, and more.

It runs against the whole service, as its own command line in a process of its own.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio

from support.furnished import SETTINGS, furnish
from support.hosted import Hosted, hosted
from support.tiny import tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMAND = str(Path(sys.executable).with_name("schemathesis"))
TESTS = str(Path(__file__).parents[1])
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hosted]:
    """It has what the document's examples name."""
    folder = tmp_path_factory.mktemp("service")
    async with hosted(folder / "home", model=tiny_model(folder / "tiny"), **SETTINGS) as service:
        await furnish(service)
        yield service


async def document(service: Hosted) -> dict[str, Any]:
    async with service.client() as client:
        found: dict[str, Any] = (await client.get("/openapi.json")).json()
        return found


async def test_schemathesis_finds_no_fault_and_no_answer_that_is_not_documented(
    service: Hosted, tmp_path: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "run", f"{service.url}/openapi.json"),
        *("--header", f"Authorization: {service.headers['Authorization']}"),
        *("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing,stateful"),
        *("--max-examples", "10", "--seed", "1", "--generation-database", "none"),
        *("--continue-on-failure", "--warnings", "off", "--no-color"),
        *("--suppress-health-check", "too_slow", "--request-timeout", "60"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": TESTS, "SCHEMATHESIS_HOOKS": "support.schemathesis_forms"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-20_000:]


async def test_every_example_is_what_its_schema_says(service: Hosted) -> None:
    found = await document(service)
    schemas = found["components"]["schemas"]
    wrong = {
        name: error.message
        for name, schema in schemas.items()
        for example in schema.get("examples", ())
        for error in jsonschema_rs.validator_for(
            {"$ref": f"#/components/schemas/{name}", "components": found["components"]}
        ).iter_errors(example)
    }
    assert wrong == {}


async def test_every_body_has_an_example(service: Hosted) -> None:
    found = await document(service)
    schemas = found["components"]["schemas"]
    assert [name for name, each in schemas.items() if each.get("properties")] == [
        name for name, each in schemas.items() if each.get("examples")
    ]


async def test_the_document_says_who_may_call_what(service: Hosted) -> None:
    paths = (await document(service))["paths"]
    assert paths["/v1/groups"]["get"]["x-permission"] == "viewer"
    assert paths["/v1/groups"]["post"]["x-permission"] == "member"
    unsaid = [
        path
        for path, methods in paths.items()
        if any("x-permission" not in said for said in methods.values())
    ]
    assert unsaid == ["/healthz"]

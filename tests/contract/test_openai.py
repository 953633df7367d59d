"""The real `openai` package against the wire, on loopback, with a scripted model behind it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from registry.access import service as access
from registry.access.actor import Actor, Role
from registry.artifacts.memory import MemoryBlobStore
from registry.deployments import moves
from registry.deployments import service as deployments
from registry.kit.db import Database
from registry.kit.rest import add_error_handlers
from registry.packages.ref import PackageRef
from registry.usage import service as usage
from registry.usage.model import Category
from session.api import openai as wire
from session.engine.port import BaseRef
from session.sampling.chat import ChatTokenizer
from session.serving.app import Serving, create_app
from support.database import fresh_database
from support.merged import member, publish
from support.server import running
from support.speaking import Script, SpeakingEngine, SpeakingSampler
from support.tiny import CONTEXT, tiny_model
from support.training import eventually
from support.waiting import until

ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass
class Service:
    """A deployment `live` in a process of its own, and a session `my-session`."""

    url: str
    secret: str
    viewer: str
    actor: Actor
    folder: Path
    script: Script
    clients: ExitStack

    @property
    def client(self) -> openai.OpenAI:
        return self.client_of(self.secret)

    def client_of(self, secret: str) -> openai.OpenAI:
        """Closed with the service: an open socket would be a later test's warning."""
        client = openai.OpenAI(base_url=self.url, api_key=secret, max_retries=0, timeout=60)
        return self.clients.enter_context(client)

    def tokens(self) -> dict[Category, int]:
        async def read() -> dict[Category, int]:
            async with fresh_database(self.folder) as database, database.read() as db:
                return await usage.totals(db, self.actor)

        return asyncio.run(read())

    def metered(self) -> tuple[int, int]:
        """Prompt and sampled tokens, once anything is metered."""
        eventually(lambda: any(self.tokens().values()))
        return self.tokens()[Category.prefill], self.tokens()[Category.sample]


async def _prepare(folder: Path) -> tuple[str, str, Actor]:
    """Two deployments that start, and the secrets of a member and a viewer."""
    async with fresh_database(folder) as database, database.begin() as db:
        actor = await member(db)
        await publish(db, MemoryBlobStore(), actor)
        secrets = [
            (await access.create_token(db, account_id=actor.account_id, name="t", role=role))[1]
            for role in (Role.member, Role.viewer)
        ]
        for name in ("live", "slow-start"):
            await deployments.promote(db, actor, name=name, ref=PackageRef("facts", 1))
    return secrets[0], secrets[1], actor


async def _activate(folder: Path, serve: Callable[[str], str]) -> None:
    async with fresh_database(folder) as database, database.begin() as db:
        starting = next(iter(await moves.live(db)))
        assert await moves.activate(db, starting, address=serve(starting.served_name))


def _main_app(folder: Path, script: Script) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.database = Database.connect(f"sqlite+aiosqlite:///{folder}/test.db")
        yield
        await app.state.database.close()

    app = FastAPI(lifespan=lifespan)
    app.state.sampler = SpeakingSampler(script)
    add_error_handlers(app)
    app.include_router(wire.router)
    return app


def _serving_app(script: Script, served_name: str) -> FastAPI:
    base = BaseRef(served_name, served_name, script.directory)
    chat = ChatTokenizer(script.directory)
    return create_app(Serving(SpeakingEngine(script), base, chat, CONTEXT))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    script = Script(tiny_model(tmp_path / "model"))
    secret, viewer, actor = asyncio.run(_prepare(tmp_path))
    with ExitStack() as stack:

        def serve(served_name: str) -> str:
            return stack.enter_context(running(_serving_app(script, served_name)))

        asyncio.run(_activate(tmp_path, serve))
        url = stack.enter_context(running(_main_app(tmp_path, script)))
        yield Service(f"{url}/openai/v1", secret, viewer, actor, tmp_path, script, stack)


both = pytest.mark.parametrize("model", ["live", "my-session"])


@both
def test_a_chat_is_answered(service: Service, model: str) -> None:
    answer = service.client.chat.completions.create(model=model, messages=ASK)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.model, answer.object) == (model, "chat.completion")


@both
def test_a_stream_says_the_same_in_pieces(service: Service, model: str) -> None:
    service.script.text = "Ünïcode is 🗼 whole"
    stream = service.client.chat.completions.create(model=model, messages=ASK, stream=True)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Ünïcode is 🗼 whole"
    assert not any("\ufffd" in (chunk.choices[0].delta.content or "") for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {(chunk.model, chunk.usage) for chunk in chunks} == {(model, None)}
    assert len({chunk.id for chunk in chunks}) == 1


@both
def test_a_stream_tells_its_usage_when_asked(service: Service, model: str) -> None:
    *chunks, last = service.client.chat.completions.create(
        model=model, messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(service.script.tokens)
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)


@pytest.mark.parametrize("stream", [True, False])
def test_a_deployments_tokens_are_metered(service: Service, stream: bool) -> None:
    create: Any = service.client.chat.completions.create
    answer = create(model="live", messages=ASK, n=2, stream=stream)
    if stream:
        list(answer)
    prompt = ChatTokenizer(service.script.directory).encode_chat(ASK)
    assert service.metered() == (len(prompt), 2 * len(service.script.tokens))


def test_a_stream_that_is_cut_meters_what_was_sent_and_ends_the_work(service: Service) -> None:
    service.script.text, service.script.delay_s = "one by one " * 30, 0.05
    stream = service.client.chat.completions.create(model="live", messages=ASK, stream=True)
    for _ in range(4):
        next(stream)
    stream.close()
    eventually(lambda: service.script.cut == 1)
    _, sampled = service.metered()
    assert 3 <= sampled < len(service.script.tokens) / 2


@both
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_work(service: Service, model: str, stream: bool) -> None:
    service.script.text, service.script.delay_s = "one by one " * 30, 0.05
    body = {"model": model, "messages": ASK, "stream": stream}
    headers = {"Authorization": f"Bearer {service.secret}"}
    url = f"{service.url}/chat/completions"

    async def leave_in_the_middle() -> None:
        async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=60) as client:
            asked = asyncio.create_task(client.post(url, json=body))
            await until(lambda: service.script.spoken > 0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(leave_in_the_middle())
    eventually(lambda: service.script.cut == 1)


@both
def test_a_stop_string_is_cut_and_ends_the_work(service: Service, model: str) -> None:
    answer = service.client.chat.completions.create(model=model, messages=ASK, stop=[" is P", "x"])
    assert answer.choices[0].message.content == "The capital of France"
    assert answer.choices[0].finish_reason == "stop"


def test_several_choices_and_log_probabilities(service: Service) -> None:
    answer = service.client.chat.completions.create(
        model="live", messages=ASK, n=2, logprobs=True, max_tokens=4
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        scored = choice.logprobs.content or []
        assert "".join(token.token for token in scored) == choice.message.content
        assert [token.logprob for token in scored] == [-0.5] * 4
        assert choice.finish_reason == "length"


@both
def test_a_plain_prompt_is_completed(service: Service, model: str) -> None:
    tokens = ChatTokenizer(service.script.directory).encode("The capital of France is")
    for prompt in ("The capital of France is", tokens):
        answer = service.client.completions.create(model=model, prompt=prompt, logprobs=0)
        assert answer.choices[0].text == "The capital of France is Paris."
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(tokens)
        assert answer.choices[0].logprobs is not None
    pieces = service.client.completions.create(model=model, prompt="The", stream=True)
    assert "".join(p.choices[0].text for p in pieces) == "The capital of France is Paris."


def test_what_was_asked_reaches_the_engine(service: Service) -> None:
    service.client.chat.completions.create(
        model="live", messages=ASK, temperature=0, top_p=0.5, seed=7, stop="zzz", max_tokens=9
    )
    [asked] = service.script.asked
    assert (asked.temperature, asked.top_p, asked.seed) == (0.0, 0.5, 7)
    assert (asked.stop_strings, asked.stop_ids, asked.max_tokens) == (("zzz",), None, 9)
    assert list(asked.prompt) == ChatTokenizer(service.script.directory).encode_chat(ASK)


@both
def test_a_prompt_beyond_the_context_is_refused(service: Service, model: str) -> None:
    long: Any = [{"role": "user", "content": "x" * 600}]
    with pytest.raises(openai.BadRequestError, match="context is 512 tokens") as caught:
        service.client.chat.completions.create(model=model, messages=long, stream=True)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert not any(service.tokens().values())


def test_an_unlimited_answer_gets_what_is_left_of_the_context(service: Service) -> None:
    service.client.chat.completions.create(model="live", messages=ASK)
    [asked] = service.script.asked
    assert asked.max_tokens == CONTEXT - len(asked.prompt)
    with pytest.raises(openai.BadRequestError, match="512 are asked for") as caught:
        service.client.chat.completions.create(model="live", messages=ASK, max_tokens=CONTEXT)
    assert caught.value.param == "max_tokens"


@both
def test_an_engine_that_fails_at_once_answers_with_the_reason(service: Service, model: str) -> None:
    service.script.fails_after = 0
    create: Any = service.client.chat.completions.create
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError, match="weights are not finite"):
            create(model=model, messages=ASK, stream=stream)


@both
def test_an_engine_that_fails_later_ends_the_stream_with_the_reason(
    service: Service, model: str
) -> None:
    service.script.fails_after = 3
    stream = service.client.chat.completions.create(model=model, messages=ASK, stream=True)
    with pytest.raises(openai.APIError, match="weights are not finite"):
        list(stream)


def test_a_serving_process_that_breaks_is_said_to_have(service: Service) -> None:
    service.script.fails_after, service.script.error = 0, RuntimeError
    create: Any = service.client.chat.completions.create
    for stream in (True, False):
        with pytest.raises(openai.InternalServerError, match="that serves live failed"):
            create(model="live", messages=ASK, stream=stream)
    assert not any(service.tokens().values())
    service.script.fails_after = 3
    with pytest.raises(openai.APIError, match="ended in the middle of its answer"):
        list(create(model="live", messages=ASK, stream=True))
    assert service.metered()[1] == 3


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        ("nothing", openai.NotFoundError, "'nothing' does not exist"),
        ("slow-start", openai.InternalServerError, "slow-start is starting"),
    ],
)
def test_a_model_that_cannot_answer_says_why(
    service: Service, model: str, error: type[openai.APIStatusError], says: str
) -> None:
    with pytest.raises(error, match=says):
        service.client.chat.completions.create(model=model, messages=ASK)


def test_a_base_model_whose_files_are_away_is_named(service: Service) -> None:
    service.script.directory.rename(service.folder / "moved")
    with pytest.raises(openai.InternalServerError, match="base model of 'my-session'") as caught:
        service.client.chat.completions.create(model="my-session", messages=ASK)
    assert caught.value.status_code == 503
    assert (caught.value.type, caught.value.param) == ("server_error", "model")


def test_a_fault_of_ours_has_openais_shape_too(service: Service) -> None:
    service.script.fails_after, service.script.error = 0, RuntimeError
    create: Any = service.client.chat.completions.create
    for stream in (True, False):
        with pytest.raises(openai.InternalServerError, match="unexpected error") as caught:
            create(model="my-session", messages=ASK, stream=stream)
        assert (caught.value.status_code, caught.value.type) == (500, "server_error")


def test_who_may_ask(service: Service) -> None:
    with pytest.raises(openai.AuthenticationError) as unknown:
        service.client_of("my-wrong").models.list()
    assert unknown.value.code == "invalid_api_key"
    viewer = service.client_of(service.viewer)
    with pytest.raises(openai.PermissionDeniedError):
        viewer.chat.completions.create(model="live", messages=ASK)
    assert {model.id for model in viewer.models.list()} == {"live", "slow-start", "my-session"}
    assert viewer.models.retrieve("live").owned_by == service.actor.account_id


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", "body"),
        (json.dumps({"model": "live"}).encode(), "messages"),
        (json.dumps({"model": "live", "messages": ASK, "tools": 3}).encode(), "tools"),
        (
            json.dumps({"model": "live", "messages": ASK, "logit_bias": {"1": 2}}).encode(),
            "logit_bias",
        ),
        (
            rb'{"model": "live", "messages": [{"role": "user", "content": "\ud800"}]}',
            "messages.0.content",
        ),
        (rb'{"model": "\udc00", "messages": []}', "model"),
        (rb'{"model": "live", "messages": [], "\udc00": 1}', "body"),
    ],
)
def test_a_bad_body_names_the_field(service: Service, body: bytes, param: str) -> None:
    answer = httpx.post(
        f"{service.url}/chat/completions",
        content=body,
        headers={"Authorization": f"Bearer {service.secret}", "Content-Type": "application/json"},
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


def test_tools_the_template_has_no_place_for_are_not_ignored(service: Service) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="no place for tools"):
        service.client.chat.completions.create(model="live", messages=ASK, tools=[tool])
    service.client.chat.completions.create(
        model="live", messages=ASK, tools=[tool], tool_choice="none"
    )

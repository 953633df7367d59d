"""`push` and `pull`, from the client and the command line, on every store and over bad networks."""

import asyncio
import json
import logging
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import modelyard
from exporters.merge import merge
from support.faulty import Once, Proxied, kill, proxy
from support.hosted import Hosted
from support.model_files import change_json, random_adapter
from support.s3 import S3Server
from support.service import environment
from support.uploads import MIB, Outside, taking
from support.waiting import until


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


@pytest.fixture(params=["local", "minio", "versitygw"])
async def anywhere(
    request: pytest.FixtureRequest, tmp_path: Path, outside: Outside
) -> AsyncIterator[Hosted]:
    server = None if request.param == "local" else request.getfixturevalue(request.param)
    async with taking(tmp_path / "home", outside, server) as service:
        yield service


@pytest.fixture
async def service(tmp_path: Path, outside: Outside) -> AsyncIterator[Hosted]:
    """On a directory."""
    async with taking(tmp_path / "home", outside) as service:
        yield service


async def calling(
    service: Hosted, work: Callable[[modelyard.ServiceClient], Any], url: str | None = None
) -> Any:
    """`work` with a client of its own, in a thread."""
    key = service.headers["Authorization"].removeprefix("Bearer ")

    def run() -> Any:
        with modelyard.ServiceClient(url or service.url, key, group="facts", timeout=30) as client:
            return work(client)

    return await asyncio.to_thread(run)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def test_what_was_pushed_is_pulled_and_pushed_back_with_the_same_digest(
    anywhere: Hosted, outside: Outside, tmp_path: Path
) -> None:
    pushed = await calling(anywhere, lambda client: client.push(outside.path).result())
    assert (pushed.ref, pushed.kind, pushed.base_model) == ("facts@1", "adapter", "tiny")
    await calling(anywhere, lambda client: client.pull("facts@1", tmp_path / "out").result())
    assert tree(tmp_path / "out" / "checkpoints" / "hf") == tree(outside.path)
    again = await calling(anywhere, lambda client: client.push(tmp_path / "out", "other").result())
    assert (again.ref, again.kind, again.digest) == ("other@1", "adapter", pushed.digest)


async def test_the_same_directory_is_one_version_and_other_words_another(
    service: Hosted, outside: Outside
) -> None:
    def work(client: modelyard.ServiceClient) -> list[str]:
        said = [{}, {}, {"description": "better"}, {"metadata": {"who": "me"}}]
        return [client.push(outside.path, **each).result().ref for each in said]  # type: ignore[arg-type]  # each is one of several keywords

    refs = await calling(service, work)
    assert refs == ["facts@1", "facts@1", "facts@2", "facts@3"]


async def test_two_pushes_at_once_are_one_version(anywhere: Hosted, outside: Outside) -> None:
    def work(client: modelyard.ServiceClient) -> str:
        return client.push(outside.path).result().ref

    assert await asyncio.gather(*(calling(anywhere, work) for _ in range(3))) == ["facts@1"] * 3
    versions = await calling(anywhere, lambda client: client.list_versions())
    assert len(versions) == 1


async def test_a_push_tells_how_far_it_is(service: Hosted, outside: Outside) -> None:
    told: list[tuple[str, int, int]] = []
    await calling(
        service,
        lambda client: client.push(outside.path, progress=lambda *far: told.append(far)).result(),
    )
    total = sum(path.stat().st_size for path in outside.path.iterdir())
    assert ("hashing", total, total) in told
    assert ("sending", total, total) in told
    assert told[-1][0] == "checking"


async def test_what_is_wrong_in_a_directory_is_said_before_anything_is_sent(
    service: Hosted, outside: Outside
) -> None:
    change_json(outside.path / "adapter_config.json", base_model_name_or_path="/root/base")
    with pytest.raises(
        modelyard.InvalidInput, match=r"^adapter_config\.json: .*absolute path.*--base NAME"
    ):
        await calling(service, lambda client: client.push(outside.path).result())
    async with service.client() as client:
        assert (await client.get("/v1/groups/facts/uploads")).json()["data"] == []


async def test_an_adapter_that_says_where_its_base_lay_is_stored_with_the_name_that_is_given(
    service: Hosted, outside: Outside, tmp_path: Path
) -> None:
    config = outside.path / "adapter_config.json"
    change_json(config, base_model_name_or_path="/root/base")
    before = config.read_bytes()

    def work(client: modelyard.ServiceClient) -> list[str]:
        made = [client.push(outside.path, base_model="tiny").result().ref for _ in range(2)]
        client.pull("facts@1", tmp_path / "out").result()
        return made

    assert await calling(service, work) == ["facts@1", "facts@1"]
    assert config.read_bytes() == before
    stored = json.loads((tmp_path / "out/checkpoints/hf/adapter_config.json").read_text())
    assert stored == {**json.loads(before), "base_model_name_or_path": "tiny"}


async def test_a_base_that_the_service_has_not_is_named_with_those_it_has(
    service: Hosted, outside: Outside
) -> None:
    change_json(outside.path / "adapter_config.json", base_model_name_or_path="org/other")
    with pytest.raises(modelyard.InvalidInput, match=r"names the base 'org/other'.*: tiny$"):
        await calling(service, lambda client: client.push(outside.path).result())
    made = await calling(
        service, lambda client: client.push(outside.path, base_model="tiny").result()
    )
    assert made.base_model == "tiny"


async def test_an_adapter_without_a_tokenizer_gets_its_bases(
    service: Hosted, outside: Outside, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (outside.path / name).unlink()
    (outside.path / "generation_config.json").unlink()
    await calling(service, lambda client: client.push(outside.path).result())
    await calling(service, lambda client: client.pull("facts@1", tmp_path / "out").result())
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        pulled = tmp_path / "out" / "checkpoints" / "hf" / name
        assert pulled.read_bytes() == (outside.base / name).read_bytes()


async def test_a_chat_template_that_was_lost_is_the_bases(
    service: Hosted, outside: Outside, tmp_path: Path
) -> None:
    """Case O21: a tokenizer of its own, saved without the template."""
    (outside.path / "chat_template.jinja").unlink()
    change_json(outside.path / "tokenizer_config.json", added="mine")
    await calling(service, lambda client: client.push(outside.path).result())
    await calling(service, lambda client: client.pull("facts@1", tmp_path / "out").result())
    pulled = tree(tmp_path / "out" / "checkpoints" / "hf")
    assert pulled["chat_template.jinja"] == (outside.base / "chat_template.jinja").read_bytes()
    assert b"mine" in pulled["tokenizer_config.json"]


async def test_a_merged_model_alone_is_promotable_and_not_sampled_on_its_base(
    anywhere: Hosted, outside: Outside, tmp_path: Path
) -> None:
    adapter = random_adapter(outside.base, tmp_path / "adapter", targets=("q_proj",))
    merge(outside.base, adapter, tmp_path / "merged")
    made = await calling(
        anywhere, lambda client: client.push(tmp_path / "merged", base_model="tiny").result()
    )
    assert (made.kind, made.promotable, made.resumable) == ("merged", True, False)
    for use in (trained, sampled):
        with pytest.raises(modelyard.ConflictError, match="full weights and no adapter"):
            await calling(anywhere, use)
    await calling(anywhere, lambda client: client.pull("facts@1", tmp_path / "out").result())
    again = await calling(
        anywhere,
        lambda client: client.push(tmp_path / "out", "other", base_model="tiny").result(),
    )
    assert (again.kind, again.digest) == ("merged", made.digest)


def trained(client: modelyard.ServiceClient) -> object:
    return client.create_training_client_from_state("facts@1")


def sampled(client: modelyard.ServiceClient) -> object:
    sampler = client.create_sampling_client(version="facts@1")
    return sampler.sample(modelyard.ModelInput.from_ints([3])).result()


async def test_a_pull_goes_on_with_what_is_there_and_overwrites_nothing(
    service: Hosted, outside: Outside, tmp_path: Path
) -> None:
    await calling(service, lambda client: client.push(outside.path).result())
    out = tmp_path / "out" / "checkpoints" / "hf"
    out.mkdir(parents=True)
    (out / ".notes.txt.partial").write_bytes((outside.path / "notes.txt").read_bytes()[: 3 * MIB])
    (out / "tokenizer.json").write_text("mine")
    with pytest.raises(modelyard.InvalidInput, match=r"tokenizer\.json exists"):
        await calling(service, lambda client: client.pull("facts@1", tmp_path / "out").result())
    (out / "tokenizer.json").unlink()
    await calling(service, lambda client: client.pull("facts:latest", tmp_path / "out").result())
    assert tree(out) == tree(outside.path)


def is_part(number: int) -> Callable[[Proxied], bool]:
    def fits(request: Proxied) -> bool:
        asked = parse_qs(urlsplit(request.path).query)
        return request.command == "PUT" and asked.get("partNumber") == [str(number)]

    return fits


def drop_the_answer(request: Proxied) -> None:
    """The work is done, and nobody hears of it."""
    request.passed_on()
    request.hang_up()


async def test_answers_that_are_lost_make_no_second_version_and_no_second_object(
    minio: S3Server, outside: Outside, tmp_path: Path
) -> None:
    """Case O1: 12 MiB in parts of 5 MiB; the answers of part 2 and of the commit are dropped."""
    part = Once(is_part(2), drop_the_answer)
    end = Once(lambda request: "/commit" in request.path, drop_the_answer)
    with proxy(minio.endpoint, part) as public:
        async with taking(tmp_path / "home", outside, minio, public_endpoint=public) as service:
            with proxy(service.url, end) as url:
                made = await calling(
                    service, lambda client: client.push(outside.path).result(), url
                )
            listed = await service.store.objects("")
            versions = await calling(service, lambda client: client.list_versions())
            verified = await calling(service, lambda client: client.verify("facts@1").result())
    assert (part.left, end.left) == (0, 0)
    assert [version.ref for version in versions] == ["facts@1"]
    assert verified.intact
    assert made.digest == versions[0].digest
    notes = [each for each in listed if each.key.endswith("/notes.txt")]
    assert [each.size for each in notes] == [12 * MIB]
    assert sum(each.size for each in listed) == versions[0].size


async def test_an_address_of_the_store_is_never_logged(
    minio: S3Server, outside: Outside, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with taking(tmp_path / "home", outside, minio) as service:
        await calling(service, lambda client: client.push(outside.path).result())
    assert "/commit" in caplog.text
    assert "X-Amz-Signature" not in caplog.text


class Watched:
    """Passes parts on, counts them, and at one of them kills the process that sends."""

    def __init__(self, number: int) -> None:
        self.arrived: list[str] = []
        self.connections: set[Proxied] = set()
        self.sender: Future[int] = Future()
        self._killing = Once(is_part(number), kill(self.sender))

    def __call__(self, request: Proxied) -> bool:
        if request.command != "PUT":
            return False
        if self._killing(request):
            return True
        response = request.passed_on()
        self.arrived.append(parse_qs(urlsplit(request.path).query)["partNumber"][0])
        request.answer(response)
        return True


async def test_a_push_that_was_killed_goes_on_and_sends_no_finished_part_again(
    minio: S3Server, tmp_path: Path
) -> None:
    outside = Outside(tmp_path, notes=38 * MIB)
    watched = Watched(number=5)
    with proxy(minio.endpoint, watched, connections=watched.connections) as public:
        async with taking(tmp_path / "home", outside, minio, public_endpoint=public) as service:
            first = await push(service, outside, tmp_path)
            watched.sender.set_result(first.pid)
            await first.communicate()
            assert first.returncode == -signal.SIGKILL
            await until(lambda: not watched.connections)
            before = list(watched.arrived)
            second = await push(service, outside, tmp_path)
            said, _ = await second.communicate()
            verified = await calling(service, lambda client: client.verify("facts@1").result())
    assert (second.returncode, said) == (0, b"facts@1\n")
    assert verified.intact
    assert before
    assert sorted(watched.arrived) == [str(number) for number in range(1, 9)]


async def push(
    service: Hosted, outside: Outside, folder: Path, *words: str
) -> asyncio.subprocess.Process:
    key = service.headers["Authorization"].removeprefix("Bearer ")
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "session", "push", str(outside.path), "facts", *words),
        env={
            **environment(folder / "client"),
            "MODELYARD_URL": service.url,
            "MODELYARD_API_KEY": key,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_commands_push_and_pull(
    service: Hosted, outside: Outside, tmp_path: Path
) -> None:
    done = await push(service, outside, tmp_path, "--metadata", "who=me", "--json")
    said, _ = await done.communicate()
    assert (done.returncode, json.loads(said)["version"]) == (0, "facts@1")
    found = await calling(service, lambda client: client.get_version("facts@1"))
    assert found.metadata == {"who": "me"}
    key = service.headers["Authorization"].removeprefix("Bearer ")
    given = {"MODELYARD_URL": service.url, "MODELYARD_API_KEY": key}
    pulled = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "session", "pull", "facts", str(tmp_path / "out")),
        env={**environment(tmp_path / "client"), **given},
    )
    assert await pulled.wait() == 0
    assert tree(tmp_path / "out" / "checkpoints" / "hf") == tree(outside.path)


async def test_a_command_that_cannot_push_says_the_file_and_why(
    service: Hosted, outside: Outside, tmp_path: Path
) -> None:
    shutil.copy(outside.path / "adapter_model.safetensors", outside.path / "extra.safetensors")
    done = await push(service, outside, tmp_path)
    _, said = await done.communicate()
    assert done.returncode == 1
    assert said.startswith(b"modelyard: extra.safetensors: is no part of the weights")

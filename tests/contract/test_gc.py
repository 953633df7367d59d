"""`modelyard gc` and POST /v1/gc: who may, what they say, and how they end."""

import asyncio
import itertools
import json
import os
import signal
from concurrent.futures import Future
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from registry.access.actor import Role
from registry.access.service import require_account
from registry.artifacts.s3 import S3BlobStore
from registry.kit.clock import now
from registry.kit.ids import new_id
from session.cli.keeper import sweep
from session.cli.root import main
from support.faulty import Once, Proxied, kill, proxy
from support.hosted import Hosted
from support.s3 import S3Server
from support.service import MODELYARD, environment, modelyard


async def litter(service: Hosted, account: str) -> str:
    """Somebody's object of twelve bytes, and whose it is."""
    await service.token(account)
    async with service.database.read() as db:
        owner = await require_account(db, account)
    key = f"{owner.id}/demo/{new_id('pkg')}/checkpoints/hf/a.json"
    await service.store.put_bytes(key, b"twelve bytes")
    return key


async def collect(service: Hosted, headers: dict[str, str], **form: object) -> httpx.Response:
    async with service.client(headers) as client:
        return await client.post("/v1/gc", json=form)


async def test_an_admin_collects_the_garbage_of_their_account_alone(service: Hosted) -> None:
    theirs, other = await litter(service, "research"), await litter(service, "team")
    admin = await service.token("research", Role.admin)
    young = (await collect(service, admin)).json()
    assert (young["bytes_freed"], young["garbage"]) == (0, [])
    told = (await collect(service, admin, dry_run=True, older_than_s=0)).json()
    done = (await collect(service, admin, older_than_s=0)).json()
    one = {"kind": "versions", "places": 1, "objects": 1, "bytes": 12}
    assert told["garbage"] == done["garbage"] == [one]
    assert (told["dry_run"], done["dry_run"], done["bytes_freed"]) == (True, False, 12)
    assert await service.store.keys("") == [other]
    assert await service.store.size(theirs) is None


async def test_the_keeper_takes_what_is_a_day_old(service: Hosted, tmp_path: Path) -> None:
    old, young = await litter(service, "research"), await litter(service, "team")
    moment = (now() - timedelta(hours=25)).timestamp()
    os.utime(tmp_path / "home" / "objects" / old, (moment, moment))
    await sweep(service.database, service.store)
    assert await service.store.keys("") == [young]


async def test_a_member_collects_nothing(service: Hosted) -> None:
    key = await litter(service, "research")
    member = await service.token("research", Role.member)
    assert (await collect(service, member, older_than_s=0)).status_code == 403
    assert await service.store.keys("") == [key]


@pytest.mark.parametrize("age", [-1, 1.5, "a day", 10**12])
async def test_an_age_that_is_none_is_refused(service: Hosted, age: object) -> None:
    answer = await collect(service, service.headers, older_than_s=age)
    assert (answer.status_code, "older_than_s" in answer.json()["detail"]) == (422, True)


def gc(
    *words: str, home: Path, patch: pytest.MonkeyPatch, out: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    patch.setenv("MODELYARD_HOME", str(home))
    with pytest.raises(SystemExit) as ended:
        main(["gc", *words])
    printed = out.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


async def test_the_command_collects_over_all_accounts(
    service: Hosted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for account in ("research", "team"):
        await litter(service, account)
    await service.store.put_bytes("readme.txt", b"mine")
    run = partial(gc, home=tmp_path / "home", patch=monkeypatch, out=capsys)
    code, out, _ = await asyncio.to_thread(run, "--older-than", "0h", "--dry-run", "--json")
    assert (code, json.loads(out)["bytes_freed"]) == (0, 24)
    code, out, err = await asyncio.to_thread(run, "--older-than", "0h")
    assert (code, out.splitlines()[1].split()) == (0, ["versions", "2", "2", "24"])
    assert "24 bytes are freed" in err
    assert "1 objects are not Modelyard's" in err
    assert await service.store.keys("") == ["readme.txt"]


async def test_a_version_that_lacks_a_file_is_told_and_ends_in_one(
    service: Hosted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with service.client() as client:
        await client.post("/v1/sessions", json={"base_model": "tiny", "name": "s1", "group": "g1"})
        form = {"number": 1, "token": "t", "body": {"type": "save", "kind": "state"}}
        asked = await client.post("/v1/sessions/s1/operations", json=form)
        await client.get(f"/v1/operations/{asked.json()['id']}?wait=20")
    (gone,) = [key for key in await service.store.keys("") if key.endswith("state.json")]
    await service.store.delete(gone)
    run = partial(gc, home=tmp_path / "home", patch=monkeypatch, out=capsys)
    code, out, err = await asyncio.to_thread(run, "--older-than", "0h")
    assert code == 1
    assert "g1@1" in out
    assert "state/state.json" in out
    assert err.splitlines()[-1] == "modelyard: 1 files of listed versions are missing or cut"
    assert (await collect(service, service.headers)).json()["damaged"] == [
        {"ref": "g1@1", "path": "state/state.json", "problem": "it is missing"}
    ]


FOLDERS, FILES = 40, 30


def is_removal(request: Proxied) -> bool:
    return request.command == "POST" and "delete" in parse_qs(
        urlsplit(request.path).query, keep_blank_values=True
    )


async def test_a_killed_command_is_finished_by_the_next(minio: S3Server, tmp_path: Path) -> None:
    home, bucket = tmp_path / "home", minio.fresh_bucket()
    settings = {
        "MODELYARD_OBJECTS__ENDPOINT": minio.endpoint,
        "MODELYARD_OBJECTS__BUCKET": bucket.name,
    }
    removals = itertools.count(1)
    victim: Future[int] = Future()

    def in_the_middle(request: Proxied) -> bool:
        return is_removal(request) and next(removals) > FOLDERS // 2

    made = await asyncio.to_thread(
        modelyard, home, "accounts", "create", "team", "--json", settings=settings
    )
    account = json.loads(made.stdout)["id"]
    folders = [f"{account}/demo/{new_id('pkg')}/" for _ in range(FOLDERS)]
    with closing(S3BlobStore(bucket)) as store:
        for folder in folders:
            puts = (store.put_bytes(f"{folder}state/{n}", b"x") for n in range(FILES))
            await asyncio.gather(*puts)
        words = ("gc", "--older-than", "0h", "--json")
        with proxy(minio.endpoint, Once(in_the_middle, kill(victim))) as url:
            first = await asyncio.create_subprocess_exec(
                *MODELYARD,
                *words,
                env=environment(home, {**settings, "MODELYARD_OBJECTS__ENDPOINT": url}),
                stdout=asyncio.subprocess.DEVNULL,
            )
            victim.set_result(first.pid)
            assert await first.wait() == -signal.SIGKILL
        assert 0 < len(await store.keys("")) < FOLDERS * FILES
        again = await asyncio.to_thread(modelyard, home, *words, settings=settings)
        assert await store.keys("") == []
    assert (again.returncode, json.loads(again.stdout)["damaged"]) == (0, [])

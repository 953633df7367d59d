"""Who holds a key may commit, once; everybody else is told why not."""

from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access import service as access
from registry.access.actor import Role
from registry.idempotency import service
from registry.idempotency.errors import AnswerUnknown, KeyReused, KeyTakenOver, StillRunning
from registry.idempotency.service import Answer, Claim
from registry.kit.clock import now

START = now()
MADE = Answer(201, [["content-type", "application/json"]], b'{"id": 1}')


@pytest.fixture
async def token(db: AsyncSession) -> str:
    account = await access.create_account(db, name="alice")
    made, _ = await access.create_token(db, account_id=account.id, name="t", role=Role.member)
    return made.id


async def claim(
    db: AsyncSession, token: str, *, after_s: float = 0, fingerprint: str = "same"
) -> Claim | Answer:
    at = START + timedelta(seconds=after_s)
    return await service.claim(db, token, "k", fingerprint=fingerprint, at=at)


async def claimed(db: AsyncSession, token: str, *, after_s: float = 0) -> Claim:
    found = await claim(db, token, after_s=after_s)
    assert isinstance(found, Claim)
    return found


async def test_an_answer_is_given_again_for_24_hours(db: AsyncSession, token: str) -> None:
    first = await claimed(db, token)
    await service.confirm(db, first)
    await service.keep(db, first, MADE)
    assert await claim(db, token, after_s=24 * 3600 - 1) == MADE
    assert isinstance(await claim(db, token, after_s=24 * 3600 + 1), Claim)


async def test_another_request_with_the_key_is_refused(db: AsyncSession, token: str) -> None:
    await claimed(db, token)
    with pytest.raises(KeyReused):
        await claim(db, token, fingerprint="other")


async def test_a_request_that_runs_keeps_its_key_for_30_seconds(
    db: AsyncSession, token: str
) -> None:
    await claimed(db, token)
    with pytest.raises(StillRunning):
        await claim(db, token, after_s=29)


async def test_who_lost_a_key_commits_nothing(db: AsyncSession, token: str) -> None:
    slow = await claimed(db, token)
    quick = await claimed(db, token, after_s=31)
    with pytest.raises(KeyTakenOver):
        await service.confirm(db, slow)
    await service.confirm(db, quick)
    await service.keep(db, slow, MADE)
    with pytest.raises(AnswerUnknown):
        await claim(db, token, after_s=62)


async def test_what_is_done_is_never_done_again(db: AsyncSession, token: str) -> None:
    first = await claimed(db, token)
    await service.confirm(db, first)
    with pytest.raises(StillRunning):
        await claim(db, token, after_s=1)
    await service.give_back(db, first, at=START)
    with pytest.raises(AnswerUnknown):
        await claim(db, token, after_s=2)


async def test_a_key_that_is_given_back_may_be_used_for_anything(
    db: AsyncSession, token: str
) -> None:
    await service.give_back(db, await claimed(db, token), at=START)
    assert isinstance(await claim(db, token, fingerprint="other"), Claim)

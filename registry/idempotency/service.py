"""One request, one effect: a repeated request is answered what the first was.

A key is claimed in a transaction of its own, before its request does anything. Whatever the request
commits first, it commits together with the word that the key is done, and only if nobody has taken
the key over since. So an effect without its key is impossible, and so is a second effect.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from registry.idempotency.errors import AnswerUnknown, KeyReused, KeyTakenOver, StillRunning
from registry.idempotency.model import IdempotencyKey, KeyStatus
from registry.idempotency.repository import KeyRepository, forget
from registry.kit.ids import new_id

KEPT = timedelta(hours=24)
TAKEN = timedelta(seconds=30)
"""How long a key without an answer is left to who claimed it. Then they are taken to be gone."""
LARGEST_ANSWER = 2**20


@dataclass(frozen=True, slots=True)
class Claim:
    token_id: str
    key: str
    attempt: str


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: list[list[str]]
    body: bytes


async def claim(
    db: AsyncSession, token_id: str, key: str, *, fingerprint: str, at: datetime
) -> Claim | Answer:
    """The right to carry the request out, or what was answered when it was."""
    keys = KeyRepository(db, token_id)
    await keys.forget(key, before=at - KEPT)
    attempt, until = new_id("att"), at + TAKEN
    fresh = {"attempt": attempt, "taken_until": until}
    if await keys.add(key, fingerprint=fingerprint, created_at=at, **fresh):
        return Claim(token_id, key, attempt)
    found = await keys.found(key)
    if found is None:  # it was given back a moment ago
        raise StillRunning
    if found.fingerprint != fingerprint:
        raise KeyReused
    if found.status == KeyStatus.answered:
        return _answer(found)
    if found.taken_until > at:
        raise StillRunning
    if found.status == KeyStatus.done:
        raise AnswerUnknown
    if not await keys.take_up(key, found.attempt, fresh):
        raise StillRunning
    return Claim(token_id, key, attempt)


async def confirm(db: AsyncSession, claim: Claim) -> None:
    """Join what is being committed: it is committed only by who holds the key."""
    keys = KeyRepository(db, claim.token_id)
    if not await keys.change(claim.key, claim.attempt, {"status": KeyStatus.done}):
        raise KeyTakenOver


async def keep(db: AsyncSession, claim: Claim, answer: Answer) -> None:
    values = {
        "status": KeyStatus.answered,
        "answer_status": answer.status,
        "answer_headers": answer.headers,
        "answer_body": answer.body,
    }
    await KeyRepository(db, claim.token_id).change(claim.key, claim.attempt, values)


async def give_back(db: AsyncSession, claim: Claim, *, at: datetime) -> None:
    """No answer will be kept. The key may be used again, unless something was done by it."""
    keys = KeyRepository(db, claim.token_id)
    await keys.remove(claim.key, claim.attempt)
    await keys.change(claim.key, claim.attempt, {"taken_until": at})


async def prune(db: AsyncSession, *, at: datetime) -> None:
    await forget(db, before=at - KEPT)


def _answer(found: IdempotencyKey) -> Answer:
    assert found.answer_status is not None
    return Answer(found.answer_status, found.answer_headers or [], found.answer_body or b"")

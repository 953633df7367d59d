"""Queries on sampling requests and sampler weights."""

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from session.sampling.model import SamplerWeights, SamplingRequest


class SamplingRepository:
    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    async def by_token(self, token: str) -> SamplingRequest | None:
        query = select(SamplingRequest).where(
            SamplingRequest.account_id == self._account_id, SamplingRequest.client_token == token
        )
        return (await self._db.scalars(query)).one_or_none()

    async def weights(self, weights_id: str) -> SamplerWeights | None:
        if "\0" in weights_id:
            return None  # PostgreSQL refuses what a wire can hold
        query = select(SamplerWeights).where(
            SamplerWeights.account_id == self._account_id, SamplerWeights.id == weights_id
        )
        return (await self._db.scalars(query)).one_or_none()


async def require_request(db: AsyncSession, request_id: str) -> SamplingRequest:
    return await db.get_one(SamplingRequest, request_id)


async def forget_weights(db: AsyncSession, session_id: str) -> Sequence[SamplerWeights]:
    """Remove a session's sampler weights; the rows say which objects may go."""
    query = (
        delete(SamplerWeights)
        .where(SamplerWeights.session_id == session_id)
        .returning(SamplerWeights)
    )
    return (await db.scalars(query)).all()

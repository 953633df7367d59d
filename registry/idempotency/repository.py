from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.ext.asyncio import AsyncSession

from registry.idempotency.model import IdempotencyKey, KeyStatus
from registry.kit.rows import dialect_of, insert_missing


class KeyRepository:
    """Queries on one token's keys: nobody is answered what another token was."""

    def __init__(self, db: AsyncSession, token_id: str) -> None:
        self._db = db
        self._token_id = token_id

    async def add(self, key: str, **values: object) -> bool:
        """False where it is there already."""
        row = {"token_id": self._token_id, "key": key, "status": KeyStatus.running, **values}
        made = insert_missing(dialect_of(self._db), IdempotencyKey)
        added = await self._db.execute(made.returning(made.table.c.key), row)
        return added.one_or_none() is not None

    async def forget(self, key: str, *, before: datetime) -> None:
        """If it is older than that."""
        mine = IdempotencyKey.token_id == self._token_id, IdempotencyKey.key == key
        old = IdempotencyKey.created_at < before
        await self._db.execute(delete(IdempotencyKey).where(*mine, old))

    async def found(self, key: str) -> IdempotencyKey | None:
        return await self._db.get(IdempotencyKey, (self._token_id, key), populate_existing=True)

    async def change(self, key: str, attempt: str, values: Mapping[str, Any]) -> bool:
        """False where another attempt has taken the key over."""
        return await self._changed(key, attempt, values, KeyStatus.running, KeyStatus.done)

    async def take_up(self, key: str, attempt: str, values: Mapping[str, Any]) -> bool:
        """False where something was done, or another attempt was faster."""
        return await self._changed(key, attempt, values, KeyStatus.running)

    async def remove(self, key: str, attempt: str) -> None:
        """Only while nothing of it is done."""
        await self._db.execute(
            delete(IdempotencyKey).where(
                IdempotencyKey.token_id == self._token_id,
                IdempotencyKey.key == key,
                IdempotencyKey.attempt == attempt,
                IdempotencyKey.status == KeyStatus.running,
            )
        )

    async def _changed(
        self, key: str, attempt: str, values: Mapping[str, Any], *expected: KeyStatus
    ) -> bool:
        changed = await self._db.execute(
            update(IdempotencyKey)
            .where(
                IdempotencyKey.token_id == self._token_id,
                IdempotencyKey.key == key,
                IdempotencyKey.attempt == attempt,
                IdempotencyKey.status.in_(expected),
            )
            .values(values)
            .returning(IdempotencyKey.key)
        )
        return changed.one_or_none() is not None


async def forget(db: AsyncSession, *, before: datetime) -> None:
    """Every token's keys that are no longer kept."""
    await db.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < before))

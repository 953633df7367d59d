"""Accounts and tokens are the one table above the tenants: these queries are not bound to one."""

from collections.abc import Sequence

from sqlalchemy import bindparam, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload

from registry.access.model import Account, ApiToken
from registry.kit.db import Asked

_TOKENS = ApiToken.__table__
_BY_HASH = select(_TOKENS).where(_TOKENS.c.secret_hash == bindparam("secret_hash"))
"""Made once, as every request asks it. A row of its columns comes in half the time of an object."""


async def token_by_hash(db: Asked, secret_hash: str) -> ApiToken | None:
    """To read from: no session knows of it."""
    found = (await db.execute(_BY_HASH, {"secret_hash": secret_hash})).one_or_none()
    return None if found is None else ApiToken(**found._mapping)


class AccessRepository:
    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    def add(self, row: Account | ApiToken) -> None:
        self._db.add(row)

    async def has_accounts(self) -> bool:
        return bool(await self._db.scalar(select(exists(select(Account.id)))))

    async def accounts(self) -> Sequence[Account]:
        found = await self._db.scalars(select(Account).order_by(Account.created_at, Account.id))
        return found.all()

    async def account(self, name_or_id: str) -> Account | None:
        """An id wins over a name that looks like one."""
        found = await self._db.scalars(
            select(Account)
            .where(or_(Account.id == name_or_id, Account.name == name_or_id))
            .order_by(Account.id != name_or_id)
            .limit(1)
        )
        return found.one_or_none()

    async def token(self, token_id: str) -> ApiToken | None:
        return await self._db.get(ApiToken, token_id, options=[joinedload(ApiToken.account)])

    async def tokens(self, account_id: str | None) -> Sequence[ApiToken]:
        query = select(ApiToken).options(joinedload(ApiToken.account)).order_by(ApiToken.id)
        if account_id is not None:
            query = query.where(ApiToken.account_id == account_id)
        return (await self._db.scalars(query)).all()

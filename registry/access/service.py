"""Accounts, their tokens, and who a secret speaks for."""

import secrets
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.access.errors import (
    AccountExists,
    AccountNotFound,
    InvalidAccess,
    RoleTooLow,
    TokenNotFound,
    TokenUnknown,
)
from registry.access.model import Account, ApiToken, hash_secret
from registry.access.repository import AccessRepository, token_by_hash
from registry.kit.clock import now
from registry.kit.db import Asked
from registry.kit.ids import new_id
from registry.kit.names import NAME, NAME_RULE

_LONGEST_TOKEN_NAME = 64


async def authenticate(db: Asked, secret: str) -> Actor:
    token = await token_by_hash(db, hash_secret(secret))
    if token is None:
        raise TokenUnknown
    return token.actor(at=now())


def require_role(actor: Actor, needed: Role) -> None:
    if not actor.role.covers(needed):
        raise RoleTooLow(needed=needed, found=actor.role)


async def create_account(db: AsyncSession, *, name: str) -> Account:
    if not NAME.fullmatch(name):
        raise InvalidAccess("name", f"{name!r} is not {NAME_RULE}")
    account = Account(id=_new_account_id(), name=name)
    try:
        async with db.begin_nested():
            AccessRepository(db).add(account)
    except IntegrityError:
        raise AccountExists(name) from None
    return account


async def accounts(db: AsyncSession) -> Sequence[Account]:
    return await AccessRepository(db).accounts()


async def require_account(db: AsyncSession, name_or_id: str) -> Account:
    account = await AccessRepository(db).account(name_or_id)
    if account is None:
        raise AccountNotFound(name_or_id)
    return account


async def create_token(
    db: AsyncSession,
    *,
    account_id: str,
    name: str,
    role: Role,
    expires_at: datetime | None = None,
) -> tuple[ApiToken, str]:
    """The token and its secret, which exists in the clear only in this answer."""
    account = await require_account(db, account_id)
    if not (name.isprintable() and 0 < len(name) <= _LONGEST_TOKEN_NAME):
        raise InvalidAccess("name", f"not 1 to {_LONGEST_TOKEN_NAME} printable characters")
    secret = "my-" + secrets.token_urlsafe(30)
    token = ApiToken(
        id=new_id("tok"),
        account=account,
        name=name,
        role=role,
        secret_hash=hash_secret(secret),
        expires_at=_with_zone(expires_at),
    )
    AccessRepository(db).add(token)
    await db.flush()
    return token, secret


async def tokens(db: AsyncSession, account_id: str | None = None) -> Sequence[ApiToken]:
    """Oldest first; None lists every account's."""
    return await AccessRepository(db).tokens(account_id)


async def change_token(
    db: AsyncSession, token_id: str, *, role: Role | None = None, expires_at: datetime | None = None
) -> ApiToken:
    """What is None stays as it is."""
    token = await _require_token(db, token_id)
    token.role = role or token.role
    token.expires_at = _with_zone(expires_at) or token.expires_at
    await db.flush()
    return token


async def revoke_token(db: AsyncSession, token_id: str) -> ApiToken:
    """For good. Revoking once more keeps the first moment."""
    token = await _require_token(db, token_id)
    token.revoked_at = token.revoked_at or now()
    await db.flush()
    return token


async def ensure_admin(db: AsyncSession) -> str | None:
    """On a database without accounts: a first one, and the secret of its admin token."""
    if await AccessRepository(db).has_accounts():
        return None
    try:
        account = await create_account(db, name="default")
    except AccountExists:  # another server that starts at this moment has just made it
        return None
    _, secret = await create_token(db, account_id=account.id, name="first-admin", role=Role.admin)
    return secret


async def _require_token(db: AsyncSession, token_id: str) -> ApiToken:
    token = await AccessRepository(db).token(token_id)
    if token is None:
        raise TokenNotFound(token_id)
    return token


def _with_zone(moment: datetime | None) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidAccess("expires_at", "has no time zone; write 2030-01-31T12:00:00Z")
    return moment


def _new_account_id() -> str:
    """Twelve digits, as in an ARN; the first is not 0, so that no spreadsheet shortens it."""
    return str(10**11 + secrets.randbelow(9 * 10**11))

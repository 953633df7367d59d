"""What operator commands do to the database, in rows that print. Imported only when one runs."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from exporters import hf_model
from exporters.base import BadFile
from registry.access import service as access
from registry.access.actor import Role
from registry.access.model import Account, ApiToken
from registry.kit import migrate
from registry.kit.backup import back_up
from registry.models import catalog
from registry.models import service as models
from registry.models.model import BaseModel
from session.cli.errors import CommandFailed
from session.cli.installation import (
    in_transaction,
    load_settings,
    make_ready,
    migrations,
    open_home,
)

Row = dict[str, Any]


def schema_status() -> migrate.Schema:
    settings = load_settings()
    open_home(settings)
    return asyncio.run(migrate.status(settings.database_url(), migrations()))


def upgrade_schema() -> migrate.Schema:
    settings = load_settings()
    open_home(settings)
    return asyncio.run(migrate.upgrade(settings.database_url(), migrations()))


def back_up_database(target: Path) -> Row:
    size = back_up(load_settings().database_url(), target)
    return {"path": str(target), "bytes": size}


def add_model(name: str, path: Path | None, *, say: Callable[[str], None]) -> Row:
    """Reads, and for a known name fetches, outside the transaction: that takes long."""
    settings = load_settings()
    asyncio.run(make_ready(settings))
    directory = path or catalog.fetch(name, settings.models_path(), say=say)
    say(f"reading {directory}")
    try:
        info = hf_model.inspect(directory.absolute())
    except BadFile as error:
        raise CommandFailed(f"{directory} is not a usable model: {error}") from None
    return in_transaction(settings, lambda db: _added(db, name, info))


async def _added(db: AsyncSession, name: str, info: hf_model.ModelInfo) -> Row:
    return _model(await models.add(db, name=name, inspected=info))


def list_models() -> list[Row]:
    return [_model(model) for model in in_transaction(load_settings(), models.base_models)]


def create_account(name: str) -> Row:
    settings = load_settings()
    return _account(in_transaction(settings, lambda db: access.create_account(db, name=name)))


def list_accounts() -> list[Row]:
    return [_account(account) for account in in_transaction(load_settings(), access.accounts)]


def create_token(account: str, name: str, role: Role, *, expires_at: datetime | None) -> Row:
    """The row, and under `secret` what is never shown again."""

    async def work(db: AsyncSession) -> Row:
        owner = await access.require_account(db, account)
        token, secret = await access.create_token(
            db, account_id=owner.id, name=name, role=role, expires_at=expires_at
        )
        return {**_token(token), "secret": secret}

    return in_transaction(load_settings(), work)


def list_tokens(account: str | None) -> list[Row]:
    async def work(db: AsyncSession) -> list[Row]:
        owner = await access.require_account(db, account) if account else None
        return [_token(token) for token in await access.tokens(db, owner.id if owner else None)]

    return in_transaction(load_settings(), work)


def change_token(token_id: str, *, role: Role | None, expires_at: datetime | None) -> Row:
    async def work(db: AsyncSession) -> Row:
        return _token(await access.change_token(db, token_id, role=role, expires_at=expires_at))

    return in_transaction(load_settings(), work)


def revoke_token(token_id: str) -> Row:
    async def work(db: AsyncSession) -> Row:
        return _token(await access.revoke_token(db, token_id))

    return in_transaction(load_settings(), work)


def _model(model: BaseModel) -> Row:
    return {
        "name": model.name,
        "architecture": model.architecture,
        "context_length": model.context_length,
        "vocab_size": model.vocab_size,
        "digest": model.digest,
        "path": model.path,
        "created_at": _moment(model.created_at),
    }


def _account(account: Account) -> Row:
    return {"id": account.id, "name": account.name, "created_at": _moment(account.created_at)}


def _token(token: ApiToken) -> Row:
    return {
        "id": token.id,
        "account": token.account.name,
        "name": token.name,
        "role": token.role,
        "created_at": _moment(token.created_at),
        "expires_at": _moment(token.expires_at),
        "revoked_at": _moment(token.revoked_at),
    }


def _moment(value: datetime | None) -> str | None:
    return value.isoformat(timespec="seconds").replace("+00:00", "Z") if value else None

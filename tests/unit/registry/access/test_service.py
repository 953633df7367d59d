from datetime import UTC, datetime

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access import service
from registry.access.actor import Actor, Role
from registry.access.errors import (
    AccountExists,
    AccountNotFound,
    InvalidAccess,
    RoleTooLow,
    TokenNotFound,
    TokenRevoked,
    TokenUnknown,
)
from registry.access.model import ApiToken


async def test_a_secret_authenticates_and_is_stored_only_as_a_hash(db: AsyncSession) -> None:
    account = await service.create_account(db, name="alice")
    token, secret = await service.create_token(
        db, account_id=account.id, name="laptop", role=Role.member
    )
    assert await service.authenticate(db, secret) == Actor(account.id, Role.member)
    assert secret.startswith("my-")
    assert len(secret) == 43
    row = (await db.execute(select(ApiToken.__table__))).one()
    assert all(secret not in str(value) for value in row)
    assert token.account.name == "alice"


async def test_an_unknown_secret_is_refused(db: AsyncSession) -> None:
    with pytest.raises(TokenUnknown):
        await service.authenticate(db, "my-nothing")


async def test_a_revoked_token_stays_revoked_at_its_first_moment(db: AsyncSession) -> None:
    account = await service.create_account(db, name="alice")
    token, secret = await service.create_token(
        db, account_id=account.id, name="laptop", role=Role.viewer
    )
    first = (await service.revoke_token(db, token.id)).revoked_at
    assert (await service.revoke_token(db, token.id)).revoked_at == first
    with pytest.raises(TokenRevoked):
        await service.authenticate(db, secret)


async def test_a_change_of_role_leaves_the_expiry(db: AsyncSession) -> None:
    account = await service.create_account(db, name="alice")
    expiry = datetime(2099, 1, 1, tzinfo=UTC)
    token, secret = await service.create_token(
        db, account_id=account.id, name="laptop", role=Role.viewer, expires_at=expiry
    )
    await service.change_token(db, token.id, role=Role.admin)
    assert (await service.authenticate(db, secret)).role == Role.admin
    assert token.expires_at == expiry


async def test_an_account_is_found_by_name_and_by_id(db: AsyncSession) -> None:
    account = await service.create_account(db, name="alice")
    assert await service.require_account(db, "alice") is account
    assert await service.require_account(db, account.id) is account
    assert account.id.isdigit()
    assert len(account.id) == 12
    with pytest.raises(AccountNotFound, match="'bob'"):
        await service.require_account(db, "bob")


async def test_a_name_is_taken_once_and_the_transaction_goes_on(db: AsyncSession) -> None:
    await service.create_account(db, name="alice")
    with pytest.raises(AccountExists, match="alice"):
        await service.create_account(db, name="alice")
    await service.create_account(db, name="bob")
    assert [account.name for account in await service.accounts(db)] == ["alice", "bob"]


async def test_tokens_are_listed_for_one_account_or_all(db: AsyncSession) -> None:
    for name in ("alice", "bob"):
        account = await service.create_account(db, name=name)
        await service.create_token(db, account_id=account.id, name=name, role=Role.viewer)
    assert [token.account.name for token in await service.tokens(db)] == ["alice", "bob"]
    assert [token.name for token in await service.tokens(db, account.id)] == ["bob"]


async def test_the_first_admin_is_made_once(db: AsyncSession) -> None:
    secret = await service.ensure_admin(db)
    assert secret is not None
    assert (await service.authenticate(db, secret)).role == Role.admin
    assert await service.ensure_admin(db) is None


@pytest.mark.parametrize("name", ["", "-a", "a b", "ü", "a" * 64])
async def test_a_bad_account_name_is_refused(db: AsyncSession, name: str) -> None:
    with pytest.raises(InvalidAccess, match="name"):
        await service.create_account(db, name=name)


async def test_an_expiry_without_a_zone_is_refused(db: AsyncSession) -> None:
    account = await service.create_account(db, name="alice")
    with pytest.raises(InvalidAccess, match="expires_at"):
        await service.create_token(
            db,
            account_id=account.id,
            name="t",
            role=Role.viewer,
            expires_at=datetime(2030, 1, 1),  # noqa: DTZ001  # the fault under test
        )


async def test_an_unknown_token_id_is_named(db: AsyncSession) -> None:
    with pytest.raises(TokenNotFound, match="tok_x"):
        await service.revoke_token(db, "tok_x")


def test_a_viewer_may_not_do_what_needs_a_member() -> None:
    with pytest.raises(RoleTooLow, match="member; yours has viewer"):
        service.require_role(Actor("1", Role.viewer), Role.member)

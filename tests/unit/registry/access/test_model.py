from datetime import UTC, datetime, timedelta

import pytest

from registry.access.actor import Actor, Role
from registry.access.errors import TokenExpired, TokenRevoked
from registry.access.model import ApiToken

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def token(**changes: datetime) -> ApiToken:
    return ApiToken(id="tok_1", account_id="1", name="n", role=Role.member, **changes)


def test_a_token_speaks_for_its_account_and_role() -> None:
    assert token().actor(at=NOON) == Actor("1", Role.member)


def test_a_token_ends_at_its_expiry() -> None:
    late = token(expires_at=NOON)
    assert late.actor(at=NOON - timedelta(seconds=1)).account_id == "1"
    with pytest.raises(TokenExpired):
        late.actor(at=NOON)


def test_a_revoked_token_is_silent_though_it_has_not_expired() -> None:
    with pytest.raises(TokenRevoked):
        token(revoked_at=NOON, expires_at=NOON + timedelta(days=1)).actor(at=NOON)


@pytest.mark.parametrize(("role", "covered"), [("viewer", 1), ("member", 2), ("admin", 3)])
def test_each_role_covers_the_ones_before_it(role: str, covered: int) -> None:
    assert sum(Role(role).covers(needed) for needed in Role) == covered

"""deletion

Revision ID: d1a0c3b5e701
Revises: ccbd5b4a6573
Create Date: 2026-11-30 13:01:00

"""

from collections.abc import Sequence

revision: str = "d1a0c3b5e701"
down_revision: str | Sequence[str] | None = "ccbd5b4a6573"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Upgrade schema."""


def downgrade() -> None:
    """Downgrade schema."""

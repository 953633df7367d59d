"""group_rules

Revision ID: d1a0c3b5e706
Revises: d1a0c3b5e705
Create Date: 2026-11-30 13:06:00

"""

from collections.abc import Sequence

revision: str = "d1a0c3b5e706"
down_revision: str | Sequence[str] | None = "d1a0c3b5e705"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Upgrade schema."""


def downgrade() -> None:
    """Downgrade schema."""

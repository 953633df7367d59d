"""When an ended session's bodies and results went

Revision ID: d1a0c3b5e710
Revises: d1a0c3b5e709
Create Date: 2026-12-01 04:00:00

"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "d1a0c3b5e710"
down_revision: str | Sequence[str] | None = "d1a0c3b5e709"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

UNPRUNED = "pruned_at IS NULL AND ended_at IS NOT NULL"


def upgrade() -> None:
    """Upgrade schema."""
    moment = sa.DateTime(timezone=True)
    op.add_column("training_sessions", sa.Column("pruned_at", moment, nullable=True))
    op.create_index(
        "ix_training_sessions_unpruned_ended_at",
        "training_sessions",
        ["ended_at"],
        sqlite_where=sa.text(UNPRUNED),
        postgresql_where=sa.text(UNPRUNED),
    )


def downgrade() -> None:
    """Downgrade schema."""
    op.drop_index("ix_training_sessions_unpruned_ended_at", table_name="training_sessions")
    # In place: a batch would drop the table, which others point at, and make it anew.
    op.execute("ALTER TABLE training_sessions DROP COLUMN pruned_at")

"""writes

Revision ID: d1a0c3b5e702
Revises: d1a0c3b5e701
Create Date: 2026-11-30 13:02:00

"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "d1a0c3b5e702"
down_revision: str | Sequence[str] | None = "d1a0c3b5e701"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "package_writes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("account_id", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("paths", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("collected_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_package_writes_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_package_writes")),
    )
    with op.batch_alter_table("package_writes", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_package_writes_account_id"), ["account_id"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_package_writes_holder"), ["holder"], unique=False)


def downgrade() -> None:
    """Downgrade schema."""
    op.drop_table("package_writes")

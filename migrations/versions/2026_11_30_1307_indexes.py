"""What the indexes of the next revision stand on

Revision ID: d1a0c3b5e707
Revises: d1a0c3b5e706
Create Date: 2026-11-30 13:07:00

"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "d1a0c3b5e707"
down_revision: str | Sequence[str] | None = "d1a0c3b5e706"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TAGS_OF = "(SELECT {column} FROM packages WHERE packages.id = package_tags.package_id)"
LAST_OF = "(SELECT max(created_at) FROM packages WHERE packages.group_id = package_groups.id)"


def upgrade() -> None:
    """Upgrade schema."""
    moment = sa.DateTime(timezone=True)
    op.add_column("package_groups", sa.Column("last_version_at", moment, nullable=True))
    op.execute(f"UPDATE package_groups SET last_version_at = {LAST_OF}")

    op.add_column("package_tags", sa.Column("group_id", sa.String(), nullable=True))
    op.add_column("package_tags", sa.Column("version", sa.Integer(), nullable=True))
    group, version = (TAGS_OF.format(column=each) for each in ("group_id", "version"))
    op.execute(f"UPDATE package_tags SET group_id = {group}, version = {version}")
    with op.batch_alter_table("package_tags", schema=None) as batch_op:
        batch_op.alter_column("group_id", existing_type=sa.String(), nullable=False)
        batch_op.alter_column("version", existing_type=sa.Integer(), nullable=False)


def downgrade() -> None:
    """Downgrade schema."""
    op.execute("ALTER TABLE package_tags DROP COLUMN version")
    op.execute("ALTER TABLE package_tags DROP COLUMN group_id")
    # In place: a batch would drop the table, which others point at, and make it anew.
    op.execute("ALTER TABLE package_groups DROP COLUMN last_version_at")

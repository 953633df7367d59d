"""group_rules

Revision ID: d1a0c3b5e706
Revises: d1a0c3b5e705
Create Date: 2026-11-30 13:06:00

"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "d1a0c3b5e706"
down_revision: str | Sequence[str] | None = "d1a0c3b5e705"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "package_metrics",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("account_id", sa.String(), nullable=False),
        sa.Column("package_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_package_metrics_account_id_accounts")
        ),
        sa.ForeignKeyConstraint(
            ["package_id"], ["packages.id"], name=op.f("fk_package_metrics_package_id_packages")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_package_metrics")),
    )
    op.create_index(
        "ix_package_metrics_package_id_name_id", "package_metrics", ["package_id", "name", "id"]
    )
    op.add_column("packages", sa.Column("logged_metrics", sa.JSON(), nullable=True))
    op.add_column(
        "package_groups",
        sa.Column("require_approval", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.add_column(
        "package_groups",
        sa.Column("revision", sa.Integer(), server_default="1", nullable=False),
    )
    with op.batch_alter_table("package_events") as table:
        table.alter_column("version", existing_type=sa.Integer(), nullable=True)
        table.alter_column("digest", existing_type=sa.String(), nullable=True)


def downgrade() -> None:
    """Downgrade schema. What was about a group alone leaves the history with its column."""
    op.execute("DELETE FROM package_events WHERE version IS NULL")
    with op.batch_alter_table("package_events") as table:
        table.alter_column("version", existing_type=sa.Integer(), nullable=False)
        table.alter_column("digest", existing_type=sa.String(), nullable=False)
    # In place: a batch would drop the tables, which others point at, and make them anew.
    op.execute("ALTER TABLE package_groups DROP COLUMN revision")
    op.execute("ALTER TABLE package_groups DROP COLUMN require_approval")
    op.execute("ALTER TABLE packages DROP COLUMN logged_metrics")
    op.drop_table("package_metrics")

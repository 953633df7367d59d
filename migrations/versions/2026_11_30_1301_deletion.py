"""deletion

Revision ID: d1a0c3b5e701
Revises: ccbd5b4a6573
Create Date: 2026-11-30 13:01:00

"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "d1a0c3b5e701"
down_revision: str | Sequence[str] | None = "ccbd5b4a6573"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


GROUPS = ("deleted_at", "retention", "retention_applied_at")
PACKAGES = (
    *("deleted_at", "deleted_by", "deleted_why"),
    *("purge_at", "purging_at", "purged_at", "freed"),
)
HOLD = (
    "INSERT INTO package_holds"
    " (package_id, holder_kind, holder_id, holder_name, account_id, why, created_at)"
)


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "package_holds",
        sa.Column("package_id", sa.String(), nullable=False),
        sa.Column("holder_kind", sa.String(), nullable=False),
        sa.Column("holder_id", sa.String(), nullable=False),
        sa.Column("account_id", sa.String(), nullable=False),
        sa.Column("holder_name", sa.String(), nullable=False),
        sa.Column("why", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_package_holds_account_id_accounts")
        ),
        sa.ForeignKeyConstraint(
            ["package_id"], ["packages.id"], name=op.f("fk_package_holds_package_id_packages")
        ),
        sa.PrimaryKeyConstraint(
            "package_id", "holder_kind", "holder_id", name=op.f("pk_package_holds")
        ),
    )
    op.create_index(
        "ix_package_holds_holder_kind_holder_id", "package_holds", ["holder_kind", "holder_id"]
    )

    moment = sa.DateTime(timezone=True)
    op.add_column("package_groups", sa.Column("deleted_at", moment, nullable=True))
    op.add_column("package_groups", sa.Column("retention", sa.JSON(), nullable=True))
    op.add_column("package_groups", sa.Column("retention_applied_at", moment, nullable=True))

    op.add_column("packages", sa.Column("deleted_at", moment, nullable=True))
    op.add_column("packages", sa.Column("deleted_by", sa.String(), nullable=True))
    op.add_column("packages", sa.Column("deleted_why", sa.String(), nullable=True))
    op.add_column("packages", sa.Column("purge_at", moment, nullable=True))
    op.add_column("packages", sa.Column("purging_at", moment, nullable=True))
    op.add_column("packages", sa.Column("purged_at", moment, nullable=True))
    op.add_column("packages", sa.Column("freed", sa.BigInteger(), nullable=True))
    for column, where in (
        ("purge_at", "purge_at IS NOT NULL"),
        ("expires_at", "deleted_at IS NULL"),
    ):
        op.create_index(
            f"ix_packages_{column}",
            "packages",
            [column],
            sqlite_where=sa.text(where),
            postgresql_where=sa.text(where),
        )
    _hold_what_is_in_use()


def _hold_what_is_in_use() -> None:
    """Sessions, deployments and merges that live through the upgrade."""
    op.execute(
        f"{HOLD} SELECT parent_id, 'session', id, name, account_id, '', created_at"
        " FROM training_sessions WHERE parent_id IS NOT NULL"
        " AND status IN ('created', 'running', 'stopping')"
    )
    op.execute(
        f"{HOLD} SELECT r.package_id, 'deployment', r.id, d.name, r.account_id, '', r.created_at"
        " FROM deployment_revisions r JOIN deployments d ON d.id = r.deployment_id"
        " WHERE r.status IN ('starting', 'active', 'warm')"
    )
    op.execute(
        f"{HOLD} SELECT source_id, 'merge', id, id, account_id, '', created_at"
        " FROM merges WHERE status IN ('pending', 'running')"
    )


def downgrade() -> None:
    """Downgrade schema. What was purged cannot come back; what was deleted is there again."""
    for column in ("purge_at", "expires_at"):
        op.drop_index(f"ix_packages_{column}", table_name="packages")
    # In place: a batch would drop the tables, which others point at, and make them anew.
    for column in PACKAGES:
        op.execute(f"ALTER TABLE packages DROP COLUMN {column}")
    for column in GROUPS:
        op.execute(f"ALTER TABLE package_groups DROP COLUMN {column}")
    op.drop_table("package_holds")

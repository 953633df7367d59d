"""uploads

Revision ID: d1a0c3b5e703
Revises: d1a0c3b5e702
Create Date: 2026-11-30 13:03:00

"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "d1a0c3b5e703"
down_revision: str | Sequence[str] | None = "d1a0c3b5e702"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("account_id", sa.String(), nullable=False),
        sa.Column("group_name", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("user_metadata", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("claim", sa.String(), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("is_cleared", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_uploads_account_id_accounts")
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["packages.id"], name=op.f("fk_uploads_parent_id_packages")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
        sa.UniqueConstraint(
            "account_id", "group_name", "token", name=op.f("uq_uploads_account_id_group_name_token")
        ),
    )
    op.create_index(
        "ix_uploads_account_id_group_name_id", "uploads", ["account_id", "group_name", "id"]
    )
    op.create_index("ix_uploads_state_expires_at", "uploads", ["state", "expires_at"])
    op.create_table(
        "upload_files",
        sa.Column("upload_id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("part_size", sa.BigInteger(), nullable=False),
        sa.Column("store_id", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name=op.f("fk_upload_files_upload_id_uploads")
        ),
        sa.PrimaryKeyConstraint("upload_id", "path", name=op.f("pk_upload_files")),
    )


def downgrade() -> None:
    """Downgrade schema."""
    op.drop_table("upload_files")
    op.drop_table("uploads")

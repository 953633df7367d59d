"""An index for each way to list versions, built beside the writers where the database can

Revision ID: d1a0c3b5e708
Revises: d1a0c3b5e707
Create Date: 2026-11-30 13:08:00

"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import DBAPIError

from registry.kit.migrate import LOCK_TIMEOUT_S, TEXT_INDEX

revision: str = "d1a0c3b5e708"
down_revision: str | Sequence[str] | None = "d1a0c3b5e707"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LIVE, DELETED = " WHERE deleted_at IS NULL", " WHERE deleted_at IS NOT NULL"
NEW = {
    "ix_packages_live_group_id_version": f"packages (group_id, version){LIVE}",
    "ix_packages_live_group_id_kind_version": f"packages (group_id, kind, version){LIVE}",
    "ix_packages_live_group_id_stage_version": f"packages (group_id, stage, version){LIVE}",
    "ix_packages_live_group_id_approval_version": f"packages (group_id, approval, version){LIVE}",
    "ix_packages_live_group_id_session_id_version": (
        f"packages (group_id, session_id, version){LIVE}"
    ),
    "ix_packages_deleted_group_id_version": f"packages (group_id, version){DELETED}",
    "ix_packages_group_id_created_at_version": "packages (group_id, created_at, version)",
    "ix_package_tags_group_id_tag_version": "package_tags (group_id, tag, version)",
}
OLD = {
    "ix_packages_group_id_kind_version": "packages (group_id, kind, version)",
    "ix_packages_group_id_stage_version": "packages (group_id, stage, version)",
    "ix_packages_group_id_approval_version": "packages (group_id, approval, version)",
    "ix_packages_group_id_session_id_version": "packages (group_id, session_id, version)",
    "ix_packages_group_id_created_at": "packages (group_id, created_at)",
    "ix_package_tags_tag_package_id": "package_tags (tag, package_id)",
}
TEXT = "packages USING gin (description gin_trgm_ops)"
BROKEN = sa.text(
    "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass(:name) AND NOT indisvalid"
)


def upgrade() -> None:
    """Upgrade schema."""
    _exchange(OLD, NEW)
    if op.get_bind().dialect.name == "postgresql":
        with op.get_context().autocommit_block():
            if _has_trigrams():
                # Of texts, too few samples would hide how rare one is: then the index is misused.
                op.execute("ALTER TABLE packages ALTER description SET STATISTICS 500")
                _build(TEXT_INDEX, TEXT)
                op.execute("ANALYZE packages")


def downgrade() -> None:
    """Downgrade schema."""
    if op.get_bind().dialect.name == "postgresql":
        with op.get_context().autocommit_block():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {TEXT_INDEX}")
            op.execute("ALTER TABLE packages ALTER description SET STATISTICS -1")
    _exchange(NEW, OLD)


def _exchange(old: dict[str, str], new: dict[str, str]) -> None:
    """On PostgreSQL each statement stands for itself, so every one of them may be met again."""
    if op.get_bind().dialect.name != "postgresql":
        for name in old:
            op.execute(f"DROP INDEX {name}")
        for name, what in new.items():
            op.execute(f"CREATE INDEX {name} ON {what}")
        return
    with op.get_context().autocommit_block():
        op.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'")
        for name, what in new.items():
            _build(name, what)
        for name in old:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")


def _build(name: str, what: str) -> None:
    """What was cut off while it was built is there, never used, and in the way."""
    if op.get_bind().scalar(BROKEN, {"name": name}):
        op.execute(f"DROP INDEX CONCURRENTLY {name}")
    op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {what}")


def _has_trigrams() -> bool:
    """The extension comes with PostgreSQL, but a server may lack it or keep it for its admins."""
    try:
        op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except DBAPIError:
        return False
    return True

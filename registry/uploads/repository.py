import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Select, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.attributes import set_committed_value

from registry.kit.names import NAME
from registry.uploads.model import OVER, Upload, UploadFile, UploadState

_SLICE = 1000
_ID = re.compile(r"[a-z0-9_]{1,64}")


class UploadRepository:
    """Queries on one account's uploads."""

    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    def add(self, upload: Upload) -> None:
        self._db.add(upload)

    async def add_files(self, rows: Sequence[Mapping[str, object]]) -> None:
        await self._db.execute(insert(UploadFile), rows)

    async def upload(self, group: str, upload_id: str, *, lock: bool = False) -> Upload | None:
        if not NAME.fullmatch(group) or not _ID.fullmatch(upload_id):
            return None  # PostgreSQL refuses some of what a URL can hold
        query = self._uploads().where(Upload.group_name == group, Upload.id == upload_id)
        if lock:
            query = query.with_for_update(of=Upload).execution_options(populate_existing=True)
        return await self._whole((await self._db.scalars(query)).one_or_none())

    async def bare(self, group: str, upload_id: str) -> Upload | None:
        """Without its files, of which there may be thousands."""
        if not NAME.fullmatch(group) or not _ID.fullmatch(upload_id):
            return None
        query = self._uploads().where(Upload.group_name == group, Upload.id == upload_id)
        return (await self._db.scalars(query)).one_or_none()

    async def file(self, upload_id: str, path: str) -> UploadFile | None:
        query = (
            select(UploadFile)
            .join(Upload, Upload.id == UploadFile.upload_id)
            .where(
                Upload.account_id == self._account_id,
                UploadFile.upload_id == upload_id,
                UploadFile.path == path,
            )
        )
        return (await self._db.scalars(query)).one_or_none()

    async def by_token(self, group: str, token: str) -> Upload | None:
        query = self._uploads().where(Upload.group_name == group, Upload.token == token)
        return await self._whole((await self._db.scalars(query)).one_or_none())

    async def uploads(
        self, group: str, *, state: UploadState | None, before: str | None, limit: int
    ) -> Sequence[Upload]:
        """Newest first, as ids sort by age; without their files."""
        if not NAME.fullmatch(group):
            return []
        query = self._uploads().where(Upload.group_name == group)
        if state is not None:
            query = query.where(Upload.state == state)
        if before is not None:
            query = query.where(Upload.id < before)
        return (await self._db.scalars(query.order_by(Upload.id.desc()).limit(limit))).all()

    async def claim(self, upload_id: str, claim: str, *, at: datetime, stale: datetime) -> bool:
        """Whether `claim` may commit it now: nobody does, or who did is gone."""
        taken = await self._db.execute(
            update(Upload)
            .where(
                Upload.account_id == self._account_id,
                Upload.id == upload_id,
                or_(
                    Upload.state == UploadState.open,
                    (Upload.state == UploadState.committing)
                    & or_(Upload.claim.is_(None), Upload.claimed_at < stale),
                ),
            )
            .values(state=UploadState.committing, claim=claim, claimed_at=at)
            .returning(Upload.id),
            execution_options={"synchronize_session": False},
        )
        return taken.one_or_none() is not None

    async def refresh_claim(self, upload_id: str, claim: str, *, at: datetime) -> bool:
        """Whether `claim` still is who commits it."""
        refreshed = await self._db.execute(
            update(Upload)
            .where(Upload.id == upload_id, Upload.claim == claim)
            .values(claimed_at=at)
            .returning(Upload.id),
            execution_options={"synchronize_session": False},
        )
        return refreshed.one_or_none() is not None

    async def record_store_id(self, file: UploadFile, store_id: str) -> bool:
        """Unless somebody else has recorded another one since this file was read."""
        recorded = await self._db.execute(
            update(UploadFile)
            .where(
                UploadFile.upload_id == file.upload_id,
                UploadFile.path == file.path,
                UploadFile.store_id.is_(None)
                if file.store_id is None
                else UploadFile.store_id == file.store_id,
            )
            .values(store_id=store_id)
            .returning(UploadFile.path),
            execution_options={"synchronize_session": False},
        )
        return recorded.one_or_none() is not None

    def _uploads(self) -> Select[Upload]:
        return select(Upload).where(Upload.account_id == self._account_id)

    async def _whole(self, upload: Upload | None) -> Upload | None:
        """With its files, in slices: between two such, the loop serves other requests."""
        if upload is None:
            return None
        files: list[UploadFile] = []
        query = select(UploadFile).where(UploadFile.upload_id == upload.id)
        query = query.order_by(UploadFile.path).limit(_SLICE)
        query = query.execution_options(populate_existing=True)
        found = (await self._db.scalars(query)).all()
        while found:
            files += found
            found = (await self._db.scalars(query.where(UploadFile.path > files[-1].path))).all()
        set_committed_value(upload, "files", files)
        return upload


class UploadKeeper:
    """Queries over every account, for what the installation does by itself."""

    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    async def due(self, *, at: datetime, stale: datetime, limit: int) -> Sequence[Upload]:
        """Past their time, and nobody commits them."""
        query = (
            select(Upload)
            .where(
                Upload.expires_at <= at,
                or_(
                    Upload.state == UploadState.open,
                    (Upload.state == UploadState.committing)
                    & or_(Upload.claim.is_(None), Upload.claimed_at < stale),
                ),
            )
            .order_by(Upload.expires_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return (await self._db.scalars(query)).all()

    async def living(self, ids: Collection[str]) -> set[str]:
        """Those of these uploads that may still become versions."""
        states = (UploadState.open, UploadState.committing)
        query = select(Upload.id).where(Upload.id.in_(ids), Upload.state.in_(states))
        return set(await self._db.scalars(query))

    async def uncleared(self, *, limit: int) -> Sequence[Upload]:
        query = (
            select(Upload)
            .where(Upload.state.in_(OVER), Upload.is_cleared.is_(False))
            .options(selectinload(Upload.files))
            .order_by(Upload.id)
            .limit(limit)
        )
        return (await self._db.scalars(query)).all()

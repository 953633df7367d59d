from collections.abc import Sequence

from sqlalchemy import Select, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import contains_eager, joinedload

from registry.kit.names import NAME
from registry.packages.model import Package, PackageFile, PackageGroup, PackageKind
from registry.packages.ref import PackageRef


class PackageRepository:
    """Queries on one account's packages. The account is fixed here, so no query can forget it."""

    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    def add(self, *rows: PackageGroup | Package | PackageFile) -> None:
        self._db.add_all(rows)

    async def group(self, name: str) -> PackageGroup | None:
        if not NAME.fullmatch(name):
            return None  # PostgreSQL refuses some of what a URL can hold
        found = await self._db.scalars(self._groups().where(PackageGroup.name == name))
        return found.one_or_none()

    async def groups(self, *, after: str | None, limit: int) -> Sequence[PackageGroup]:
        query = self._groups().order_by(PackageGroup.name).limit(limit)
        if after is not None:
            query = query.where(PackageGroup.name > after)
        return (await self._db.scalars(query)).all()

    async def take_version(self, group_name: str) -> PackageGroup | None:
        """Count the group's number up: one statement, the same on both databases."""
        taken = await self._db.scalars(
            update(PackageGroup)
            .where(PackageGroup.account_id == self._account_id, PackageGroup.name == group_name)
            .values(last_version=PackageGroup.last_version + 1)
            .returning(PackageGroup),
            execution_options={"synchronize_session": False, "populate_existing": True},
        )
        return taken.one_or_none()

    async def package(self, ref: PackageRef) -> Package | None:
        if not NAME.fullmatch(ref.group):
            return None
        found = await self._db.scalars(
            self._packages().where(PackageGroup.name == ref.group, Package.version == ref.version)
        )
        return found.one_or_none()

    async def package_by_id(self, package_id: str) -> Package | None:
        found = await self._db.scalars(self._packages().where(Package.id == package_id))
        return found.one_or_none()

    async def versions(
        self, group_id: str, *, kind: PackageKind | None, before: int | None, limit: int
    ) -> Sequence[Package]:
        query = self._packages().where(Package.group_id == group_id)
        if kind is not None:
            query = query.where(Package.kind == kind)
        if before is not None:
            query = query.where(Package.version < before)
        newest_first = query.order_by(Package.version.desc()).limit(limit)
        return (await self._db.scalars(newest_first)).all()

    async def files(self, package_id: str) -> Sequence[PackageFile]:
        found = await self._db.scalars(
            select(PackageFile)
            .where(PackageFile.package_id == package_id)
            .order_by(PackageFile.path)
        )
        return found.all()

    def _groups(self) -> Select[PackageGroup]:
        return select(PackageGroup).where(PackageGroup.account_id == self._account_id)

    def _packages(self) -> Select[Package]:
        return (
            select(Package)
            .join(Package.group)
            .where(Package.account_id == self._account_id)
            .options(
                contains_eager(Package.group), joinedload(Package.parent).joinedload(Package.group)
            )
        )

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import (
    CTE,
    ColumnElement,
    ScalarSelect,
    Select,
    case,
    delete,
    func,
    literal,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import (
    InstrumentedAttribute,
    aliased,
    contains_eager,
    joinedload,
    selectinload,
    with_expression,
)
from sqlalchemy.sql.base import ExecutableOption

from registry.kit.clock import now
from registry.kit.db import UtcDateTime
from registry.kit.names import NAME
from registry.packages.model import (
    NAME_SEPARATOR,
    Approval,
    EventKind,
    HolderKind,
    Package,
    PackageAlias,
    PackageEvent,
    PackageFile,
    PackageGroup,
    PackageHold,
    PackageKind,
    PackageMetric,
    PackageTag,
    Stage,
)
from registry.packages.ref import ALIAS, LARGEST_VERSION, LATEST, AliasRef, PackageRef, Ref

GroupId = str | ScalarSelect[str]
Bound = Callable[[InstrumentedAttribute[int]], ColumnElement[bool]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which versions of a group a list holds: those that match everything that is given."""

    kind: PackageKind | None = None
    stage: Stage | None = None
    approval: Approval | None = None
    alias: str | None = None
    tag: str | None = None
    text: str | None = None
    session: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    deleted: bool = False
    """The tombstones, and no others."""

    @property
    def scope(self) -> tuple[str | None, ...]:
        """What binds a cursor to these filters."""
        plain = (self.kind, self.stage, self.approval, self.alias, self.tag, self.text)
        moments = (self.created_after, self.created_before)
        rest = (self.session, "deleted" if self.deleted else None)
        return (*plain, *rest, *(each.isoformat() if each else None for each in moments))

    def narrow(
        self, query: Select[Package], group_id: GroupId, *, before: int | None
    ) -> Select[Package]:
        is_deleted = Package.deleted_at.is_not(None)
        query = query.where(is_deleted if self.deleted else ~is_deleted)
        equal = {
            Package.kind: self.kind,
            Package.stage: self.stage,
            Package.approval: self.approval,
            Package.session_id: self.session,
        }
        for column, value in equal.items():
            if value is not None:
                query = query.where(column == value)
        if self.alias is not None:
            aliases = select(PackageAlias.package_id).where(
                PackageAlias.group_id == group_id, PackageAlias.name == self.alias
            )
            query = query.where(Package.id == aliases.scalar_subquery())
        if self.tag is not None:
            # By its number, not its id: the order of either table then is the order of the list.
            query = query.join(PackageTag, PackageTag.version == Package.version).where(
                PackageTag.group_id == group_id, PackageTag.tag == self.tag
            )
        if self.text is not None:
            query = query.where(Package.description.icontains(self.text, autoescape=True))
        for bound in self._bounds(group_id, before):
            query = query.where(bound(Package.version))
            if self.tag is not None:
                query = query.where(bound(PackageTag.version))
        return query

    def _bounds(self, group_id: GroupId, before: int | None) -> Iterator[Bound]:
        """Times are numbers too: both grow together."""
        if before is not None:
            yield lambda number: number < before
        if self.created_after is not None:
            first = _first_since(group_id, self.created_after)
            yield lambda number: number >= first
        if self.created_before is not None:
            past = func.coalesce(_first_since(group_id, self.created_before), LARGEST_VERSION)
            yield lambda number: number < past


class PackageRepository:
    """Queries on one account's packages. The account is fixed here, so no query can forget it."""

    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    def add(
        self,
        *rows: PackageGroup
        | Package
        | PackageFile
        | PackageAlias
        | PackageEvent
        | PackageHold
        | PackageMetric,
    ) -> None:
        self._db.add_all(rows)

    async def group(self, name: str, *, lock: bool = False) -> PackageGroup | None:
        """A deleted one too."""
        if not NAME.fullmatch(name):
            return None  # PostgreSQL refuses some of what a URL can hold
        query = self._groups().where(PackageGroup.name == name)
        if lock:
            query = query.with_for_update().execution_options(populate_existing=True)
        return (await self._db.scalars(query)).one_or_none()

    async def groups(self, *, after: str | None, limit: int) -> Sequence[PackageGroup]:
        listed = self._groups().where(PackageGroup.deleted_at.is_(None))
        query = listed.order_by(PackageGroup.name).limit(limit)
        if after is not None:
            query = query.where(PackageGroup.name > after)
        return (await self._db.scalars(query)).all()

    async def take_version(self, group_name: str) -> PackageGroup | None:
        """Count the group's number up: one statement, the same on both databases. None where there
        is no such group, or it is deleted."""
        moment, last = literal(now(), UtcDateTime), PackageGroup.last_version_at
        taken = await self._db.scalars(
            update(PackageGroup)
            .where(
                PackageGroup.account_id == self._account_id,
                PackageGroup.name == group_name,
                PackageGroup.deleted_at.is_(None),
            )
            .values(
                last_version=PackageGroup.last_version + 1,
                last_version_at=case((last > moment, last), else_=moment),
            )
            .returning(PackageGroup),
            execution_options={"synchronize_session": False, "populate_existing": True},
        )
        return taken.one_or_none()

    async def package(self, ref: Ref) -> Package | None:
        if not NAME.fullmatch(ref.group):
            return None
        query = self._shown().where(PackageGroup.name == ref.group)
        match ref:
            case PackageRef(_, version):
                query = query.where(Package.version == version)
            case AliasRef(group, alias) if alias == LATEST:
                return await self.newest(group, wanted=Wanted())
            case AliasRef(_, alias):
                query = query.where(Package.aliases.any(PackageAlias.name == alias))
        return (await self._db.scalars(query)).one_or_none()

    async def newest(self, group_name: str, *, wanted: Wanted) -> Package | None:
        if not NAME.fullmatch(group_name):
            return None
        # The id comes by a subquery, so that an index of the group is read in its order.
        named = select(PackageGroup.id).where(
            PackageGroup.account_id == self._account_id, PackageGroup.name == group_name
        )
        group_id = named.scalar_subquery()
        mine = self._shown().where(Package.group_id == group_id)
        query = wanted.narrow(mine, group_id, before=None)
        return (await self._db.scalars(query.order_by(Package.version.desc()).limit(1))).first()

    async def locked(self, ref: PackageRef) -> Package | None:
        """As it is now, and nobody else changes it until this transaction ends."""
        if not NAME.fullmatch(ref.group):
            return None
        query = self._packages().where(
            PackageGroup.name == ref.group, Package.version == ref.version
        )
        return (await self._db.scalars(_locking(query))).one_or_none()

    async def lock(self, package_id: str) -> Package:
        """The same of one that is there, by its id."""
        query = self._packages().where(Package.id == package_id)
        return (await self._db.scalars(_locking(query))).one()

    async def count_unpurged(self, group_id: str) -> int:
        query = select(func.count()).where(
            Package.account_id == self._account_id,
            Package.group_id == group_id,
            Package.purged_at.is_(None),
        )
        return await self._db.scalar(query) or 0

    async def unpurged(self, group_id: str, *, limit: int) -> Sequence[int]:
        query = select(Package.version).where(
            Package.account_id == self._account_id,
            Package.group_id == group_id,
            Package.purged_at.is_(None),
        )
        return (await self._db.scalars(query.order_by(Package.version).limit(limit))).all()

    async def holds(self, package_id: str) -> Sequence[PackageHold]:
        oldest_first = (PackageHold.created_at, PackageHold.holder_kind, PackageHold.holder_id)
        query = self._holds().where(PackageHold.package_id == package_id).order_by(*oldest_first)
        return (await self._db.scalars(query)).all()

    async def hold(self, package_id: str, kind: HolderKind, holder_id: str) -> PackageHold | None:
        query = self._holds().where(
            PackageHold.package_id == package_id,
            PackageHold.holder_kind == kind,
            PackageHold.holder_id == holder_id,
        )
        return (await self._db.scalars(query)).one_or_none()

    async def release(self, kind: HolderKind, holder_id: str) -> None:
        await self._db.execute(
            delete(PackageHold).where(
                PackageHold.account_id == self._account_id,
                PackageHold.holder_kind == kind,
                PackageHold.holder_id == holder_id,
            )
        )

    async def remove(self, hold: PackageHold) -> None:
        await self._db.delete(hold)

    async def package_by_id(self, package_id: str) -> Package | None:
        found = await self._db.scalars(self._packages().where(Package.id == package_id))
        return found.one_or_none()

    async def ancestors(self, package_id: str, *, limit: int) -> Sequence[Package]:
        """The parent first, then its parent, and so on."""
        line = self._start(package_id)
        parent = aliased(Package)
        step = (
            select(parent.id, parent.parent_id, line.c.distance + 1)
            .join(line, parent.id == line.c.parent_id)
            .where(parent.account_id == self._account_id)
        )
        return await self._relatives(line.union_all(step), limit)

    async def descendants(self, package_id: str, *, limit: int) -> Sequence[Package]:
        """Children first, then theirs, and so on."""
        line = self._start(package_id)
        child = aliased(Package)
        step = (
            select(child.id, child.parent_id, line.c.distance + 1)
            .join(line, child.parent_id == line.c.id)
            .where(child.account_id == self._account_id)
        )
        return await self._relatives(line.union_all(step), limit)

    def _start(self, package_id: str) -> CTE:
        one = select(Package.id, Package.parent_id, literal(0).label("distance"))
        return one.where(Package.id == package_id, Package.account_id == self._account_id).cte(
            "line", recursive=True
        )

    async def _relatives(self, line: CTE, limit: int) -> Sequence[Package]:
        query = (
            self._packages()
            .join(line, line.c.id == Package.id)
            .where(line.c.distance > 0)
            .order_by(line.c.distance, Package.created_at, Package.id)
            .limit(limit)
        )
        return (await self._db.scalars(query)).all()

    async def versions(
        self, group_id: str, *, wanted: Wanted, before: int | None, limit: int
    ) -> Sequence[Package]:
        mine = self._shown().where(Package.group_id == group_id)
        query = wanted.narrow(mine, group_id, before=before)
        newest_first = query.order_by(Package.version.desc()).limit(limit)
        return (await self._db.scalars(newest_first)).all()

    async def files(self, package_id: str) -> Sequence[PackageFile]:
        found = await self._db.scalars(
            select(PackageFile)
            .where(PackageFile.package_id == package_id)
            .order_by(PackageFile.path)
        )
        return found.all()

    async def metrics(
        self, package_id: str, *, name: str | None, after: int | None, limit: int
    ) -> Sequence[PackageMetric]:
        query = self._metrics(package_id).order_by(PackageMetric.id).limit(limit)
        if name is not None:
            query = query.where(PackageMetric.name == name)
        if after is not None:
            query = query.where(PackageMetric.id > after)
        return (await self._db.scalars(query)).all()

    async def count_metrics(self, package_id: str) -> int:
        found = self._metrics(package_id).with_only_columns(func.count())
        return await self._db.scalar(found) or 0

    async def alias(self, group_id: str, name: str, *, lock: bool = False) -> PackageAlias | None:
        """One that was removed too: it points at nothing."""
        if not ALIAS.fullmatch(name):
            return None
        query = self._aliases(group_id).where(PackageAlias.name == name)
        if lock:
            query = query.with_for_update(of=PackageAlias)
            query = query.execution_options(populate_existing=True)
        return (await self._db.scalars(query)).one_or_none()

    async def aliases(
        self, group_id: str, *, after: str | None, limit: int
    ) -> Sequence[PackageAlias]:
        query = self._aliases(group_id).where(PackageAlias.package_id.is_not(None))
        if after is not None:
            query = query.where(PackageAlias.name > after)
        return (await self._db.scalars(query.order_by(PackageAlias.name).limit(limit))).all()

    async def aliases_of(self, package: Package) -> Sequence[PackageAlias]:
        query = self._aliases(package.group_id).where(PackageAlias.package_id == package.id)
        return (await self._db.scalars(query.order_by(PackageAlias.name))).all()

    async def events(
        self,
        group_id: str,
        *,
        alias: str | None,
        version: int | None,
        at: datetime | None,
        before: int | None,
        limit: int,
    ) -> Sequence[PackageEvent]:
        query = self._events(group_id)
        if alias is not None:
            query = query.where(PackageEvent.alias == alias)
        if version is not None:
            query = query.where(PackageEvent.version == version)
        if at is not None:
            query = query.where(PackageEvent.created_at <= at)
        if before is not None:
            query = query.where(PackageEvent.id < before)
        newest_first = query.order_by(PackageEvent.id.desc()).limit(limit)
        return (await self._db.scalars(newest_first)).all()

    async def last_moves(self, group_id: str, *, at: datetime) -> Sequence[PackageEvent]:
        """Of each alias that pointed at a version then, the move that had made it so."""
        last = (
            select(func.max(PackageEvent.id))
            .where(
                PackageEvent.group_id == group_id,
                PackageEvent.kind == EventKind.alias,
                PackageEvent.created_at <= at,
            )
            .group_by(PackageEvent.alias)
        )
        query = self._events(group_id).where(
            PackageEvent.id.in_(last), PackageEvent.target.is_not(None)
        )
        return (await self._db.scalars(query.order_by(PackageEvent.alias))).all()

    def _groups(self) -> Select[PackageGroup]:
        return select(PackageGroup).where(PackageGroup.account_id == self._account_id)

    def _holds(self) -> Select[PackageHold]:
        return select(PackageHold).where(PackageHold.account_id == self._account_id)

    def _packages(self) -> Select[Package]:
        """To be changed."""
        return self._of_account().options(*_to_change())

    def _shown(self) -> Select[Package]:
        """To be read: one statement for all that is shown of each."""
        return self._of_account().options(*_to_read())

    def _of_account(self) -> Select[Package]:
        return select(Package).join(Package.group).where(Package.account_id == self._account_id)

    def _metrics(self, package_id: str) -> Select[PackageMetric]:
        return select(PackageMetric).where(
            PackageMetric.account_id == self._account_id, PackageMetric.package_id == package_id
        )

    def _aliases(self, group_id: str) -> Select[PackageAlias]:
        return (
            select(PackageAlias)
            .where(PackageAlias.account_id == self._account_id, PackageAlias.group_id == group_id)
            .options(
                joinedload(PackageAlias.group),
                joinedload(PackageAlias.package).joinedload(Package.group),
            )
        )

    def _events(self, group_id: str) -> Select[PackageEvent]:
        return select(PackageEvent).where(
            PackageEvent.account_id == self._account_id, PackageEvent.group_id == group_id
        )


def _first_since(group_id: GroupId, moment: datetime) -> ScalarSelect[int]:
    """The first number given at that time or later; null where there is none."""
    first = select(Package.version).where(
        Package.group_id == group_id, Package.created_at >= moment
    )
    return first.order_by(Package.created_at, Package.version).limit(1).scalar_subquery()


@cache
def _to_change() -> tuple[ExecutableOption, ...]:
    """Made once: making them takes longer than many a query."""
    return (*_related(), selectinload(Package.tags), selectinload(Package.aliases))


@cache
def _to_read() -> tuple[ExecutableOption, ...]:
    tags = _joined(PackageTag.tag, PackageTag.package_id == Package.id)
    aliases = _joined(PackageAlias.name, PackageAlias.package_id == Package.id)
    return (
        *_related(),
        with_expression(Package.tags_joined, tags),
        with_expression(Package.aliases_joined, aliases),
    )


def _related() -> tuple[ExecutableOption, ...]:
    parent = joinedload(Package.parent).load_only(Package.version)
    return (contains_eager(Package.group), parent.joinedload(Package.group))


def _joined(name: InstrumentedAttribute[str], condition: ColumnElement[bool]) -> ColumnElement[str]:
    names = select(func.aggregate_strings(name, NAME_SEPARATOR)).where(condition)
    return func.coalesce(names.correlate(Package).scalar_subquery(), "")


def _locking(query: Select[Package]) -> Select[Package]:
    return query.with_for_update(of=Package).execution_options(populate_existing=True)

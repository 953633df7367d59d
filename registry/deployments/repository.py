from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import contains_eager

from registry.deployments.model import (
    LIVE,
    Deployment,
    DeploymentEvent,
    DeploymentRevision,
    RevisionStatus,
    Standing,
)
from registry.kit.clock import now
from registry.kit.names import NAME
from registry.packages.model import Package


class DeploymentRepository:
    """Queries on one account's deployments. The account is fixed here."""

    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    async def standing(self, name: str, *, lock: bool = False) -> Standing | None:
        """With `lock`, no other transaction can move this deployment until ours ends."""
        if not NAME.fullmatch(name):
            return None  # PostgreSQL refuses some of what a URL can hold
        query = select(Deployment).where(
            Deployment.account_id == self._account_id, Deployment.name == name
        )
        if lock:
            query = query.with_for_update().execution_options(populate_existing=True)
        deployment = await self._db.scalar(query)
        return await self._stand(deployment) if deployment else None

    async def standings(self, *, after: str | None, limit: int) -> list[Standing]:
        query = select(Deployment).where(Deployment.account_id == self._account_id)
        if after is not None:
            query = query.where(Deployment.name > after)
        found = await self._db.scalars(query.order_by(Deployment.name).limit(limit))
        return [await self._stand(each) for each in found]

    async def events(
        self, deployment_id: str, *, before: int | None, limit: int
    ) -> Sequence[DeploymentEvent]:
        query = select(DeploymentEvent).where(
            DeploymentEvent.account_id == self._account_id,
            DeploymentEvent.deployment_id == deployment_id,
        )
        if before is not None:
            query = query.where(DeploymentEvent.id < before)
        found = await self._db.scalars(query.order_by(DeploymentEvent.id.desc()).limit(limit))
        return found.all()

    def add(self, row: Deployment | DeploymentRevision | DeploymentEvent) -> None:
        self._db.add(row)

    async def _stand(self, deployment: Deployment) -> Standing:
        pointed = [deployment.served_revision_id, deployment.previous_revision_id]
        query = (
            select(DeploymentRevision, Package.approval)
            .join(Package, Package.id == DeploymentRevision.package_id)
            .where(
                DeploymentRevision.deployment_id == deployment.id,
                (DeploymentRevision.number == deployment.last_number)
                | DeploymentRevision.id.in_([each for each in pointed if each]),
            )
        )
        found = (await self._db.execute(query)).all()
        approvals = {revision.id: approval for revision, approval in found}
        return Standing.of(
            deployment,
            [revision for revision, _ in found],
            approval=approvals.get(deployment.served_revision_id or ""),
        )


class LiveRevisions:
    """Queries of the deployer, which runs the processes of every account."""

    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    async def all(self) -> Sequence[DeploymentRevision]:
        found = await self._db.scalars(
            select(DeploymentRevision)
            .where(DeploymentRevision.status.in_(LIVE))
            .order_by(DeploymentRevision.created_at, DeploymentRevision.id)
        )
        return found.all()

    async def deployment(self, deployment_id: str) -> Deployment:
        """Locked: nothing else moves it until this transaction ends."""
        query = select(Deployment).where(Deployment.id == deployment_id).with_for_update()
        return (await self._db.scalars(query)).one()

    async def revision(self, revision_id: str | None) -> DeploymentRevision | None:
        if revision_id is None:
            return None
        return await self._db.get(DeploymentRevision, revision_id)

    async def package(self, revision: DeploymentRevision) -> Package:
        """Locked, so that nobody decides about it before this transaction ends."""
        query = (
            select(Package)
            .join(Package.group)
            .where(Package.id == revision.package_id)
            .options(contains_eager(Package.group))
            .with_for_update(of=Package)
            .execution_options(populate_existing=True)
        )
        return (await self._db.scalars(query)).one()

    async def move(
        self, revision_id: str, expected: RevisionStatus, to: RevisionStatus, *, address: str | None
    ) -> bool:
        """Compare and set one status; False where somebody else has moved it."""
        moved = await self._db.execute(
            update(DeploymentRevision)
            .where(DeploymentRevision.id == revision_id, DeploymentRevision.status == expected)
            .values(status=to, address=address)
            .returning(DeploymentRevision.id)
        )
        return moved.one_or_none() is not None

    async def switch(self, deployment: Deployment, *, to: str) -> bool:
        """Compare and set the route; what it led to becomes the one to roll back to."""
        served = deployment.served_revision_id
        moved = await self._db.execute(
            update(Deployment)
            .where(
                Deployment.id == deployment.id,
                Deployment.served_revision_id.is_not_distinct_from(served),
            )
            .values(served_revision_id=to, previous_revision_id=served, updated_at=now())
            .returning(Deployment.id)
        )
        return moved.one_or_none() is not None

    async def forget_addresses(self) -> Sequence[DeploymentRevision]:
        """Processes of an earlier run of the service are gone; only the active come back. Those
        that were kept warm are answered: they have stopped."""
        status = DeploymentRevision.status
        is_warm, is_active = status == RevisionStatus.warm, status == RevisionStatus.active
        stopped = update(DeploymentRevision).values(status=RevisionStatus.stopped, address=None)
        found = await self._db.scalars(stopped.where(is_warm).returning(DeploymentRevision))
        ended = found.all()
        await self._db.execute(update(DeploymentRevision).values(address=None).where(is_active))
        return ended

    def add(self, event: DeploymentEvent) -> None:
        self._db.add(event)

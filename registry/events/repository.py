from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import joinedload

from registry.events.model import Delivery, DeliveryStatus, Event, EventCounter, Webhook
from registry.kit.rows import dialect_of, insert_missing


class EventRepository:
    """Queries on one account's events and webhooks. The account is fixed here."""

    def __init__(self, db: AsyncSession, account_id: str) -> None:
        self._db = db
        self._account_id = account_id

    def add(self, *rows: Event | Webhook | Delivery) -> None:
        self._db.add_all(rows)

    async def number(self, event_id: str) -> int | None:
        """Of an event that is published."""
        found = await self._db.scalars(
            select(Event.number).where(Event.account_id == self._account_id, Event.id == event_id)
        )
        return found.one_or_none()

    async def events(self, *, after: int, kind: str | None, limit: int) -> Sequence[Event]:
        query = select(Event).where(Event.account_id == self._account_id, Event.number > after)
        if kind is not None:
            query = query.where(Event.type == kind)
        return (await self._db.scalars(query.order_by(Event.number).limit(limit))).all()

    async def webhook(self, webhook_id: str, *, lock: bool = False) -> Webhook | None:
        query = self._webhooks().where(Webhook.id == webhook_id)
        if lock:
            query = query.with_for_update().execution_options(populate_existing=True)
        return (await self._db.scalars(query)).one_or_none()

    async def webhooks(self, *, after: str | None, limit: int) -> Sequence[Webhook]:
        query = self._webhooks()
        if after is not None:
            query = query.where(Webhook.id > after)
        return (await self._db.scalars(query.order_by(Webhook.id).limit(limit))).all()

    async def count_webhooks(self) -> int:
        counted = select(func.count()).where(Webhook.account_id == self._account_id)
        return await self._db.scalar(counted) or 0

    async def remove_webhook(self, webhook: Webhook) -> None:
        """With what was on its way to it."""
        await self._db.execute(delete(Delivery).where(Delivery.webhook_id == webhook.id))
        await self._db.delete(webhook)

    async def deliveries(
        self, webhook_id: str, *, status: DeliveryStatus | None, before: str | None, limit: int
    ) -> Sequence[Delivery]:
        query = self._deliveries(webhook_id)
        if status is not None:
            query = query.where(Delivery.status == status)
        if before is not None:
            query = query.where(Delivery.id < before)
        return (await self._db.scalars(query.order_by(Delivery.id.desc()).limit(limit))).all()

    async def delivery(self, webhook_id: str, delivery_id: str) -> Delivery | None:
        """Locked."""
        query = self._deliveries(webhook_id).where(Delivery.id == delivery_id)
        query = query.with_for_update(of=Delivery).execution_options(populate_existing=True)
        return (await self._db.scalars(query)).one_or_none()

    def _webhooks(self) -> Select[Webhook]:
        return select(Webhook).where(Webhook.account_id == self._account_id)

    def _deliveries(self, webhook_id: str) -> Select[Delivery]:
        return (
            select(Delivery)
            .where(Delivery.account_id == self._account_id, Delivery.webhook_id == webhook_id)
            .options(joinedload(Delivery.event, innerjoin=True))
        )


class Outbox:
    """Queries of the courier, which carries the events of every account."""

    def __init__(self, db: AsyncSession) -> None:
        self._db = db

    async def has_unpublished(self) -> bool:
        found = await self._db.scalars(select(Event.id).where(Event.number.is_(None)).limit(1))
        return found.first() is not None

    async def unpublished(self, *, limit: int) -> Sequence[Event]:
        """Locked, and without those that another courier publishes just now."""
        found = await self._db.scalars(
            select(Event)
            .where(Event.number.is_(None))
            .order_by(Event.created_at, Event.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return found.all()

    async def take_numbers(self, account_id: str, count: int) -> int:
        """The last of so many new ones. Nobody else of this account gets any until we commit."""
        first = {"account_id": account_id, "last_number": 0}
        await self._db.execute(insert_missing(dialect_of(self._db), EventCounter), first)
        taken = await self._db.scalars(
            update(EventCounter)
            .where(EventCounter.account_id == account_id)
            .values(last_number=EventCounter.last_number + count)
            .returning(EventCounter.last_number)
        )
        return taken.one()

    async def subscribed(self, account_id: str) -> Sequence[Webhook]:
        """Those that nobody removes until we have addressed something to them."""
        found = await self._db.scalars(
            select(Webhook)
            .where(Webhook.account_id == account_id, Webhook.is_enabled)
            .order_by(Webhook.id)
            .with_for_update(read=True, key_share=True)
        )
        return found.all()

    def add(self, *deliveries: Delivery) -> None:
        self._db.add_all(deliveries)

    async def due(self, *, at: datetime) -> Sequence[str]:
        """The webhooks that something is due for."""
        found = await self._db.scalars(
            select(Delivery.webhook_id)
            .join(Delivery.webhook)
            .where(
                Delivery.status == DeliveryStatus.pending,
                Delivery.next_at <= at,
                Webhook.is_enabled,
            )
            .distinct()
        )
        return found.all()

    async def claim(
        self, webhook_id: str, *, at: datetime, until: datetime, limit: int
    ) -> Sequence[Delivery]:
        """What is due and nobody else attempts; due again at `until`, unless it is settled."""
        found = await self._db.scalars(
            select(Delivery)
            .where(
                Delivery.webhook_id == webhook_id,
                Delivery.status == DeliveryStatus.pending,
                Delivery.next_at <= at,
            )
            .order_by(Delivery.next_at, Delivery.id)
            .limit(limit)
            .options(
                joinedload(Delivery.event, innerjoin=True),
                joinedload(Delivery.webhook, innerjoin=True),
            )
            .with_for_update(of=Delivery, skip_locked=True)
        )
        claimed = found.all()
        for delivery in claimed:
            delivery.attempt(until=until)
        return claimed

    async def attempted(self, delivery_id: str, *, attempt: int) -> Delivery | None:
        """Locked; None where it was taken over, settled or removed since that attempt began."""
        found = await self._db.scalars(
            select(Delivery)
            .where(
                Delivery.id == delivery_id,
                Delivery.attempts == attempt,
                Delivery.status == DeliveryStatus.pending,
            )
            .options(joinedload(Delivery.webhook, innerjoin=True))
            .with_for_update(of=Delivery)
        )
        return found.one_or_none()

    async def prune(self, *, before: datetime) -> int:
        """Forget what happened by then, and how it was told; the number of events forgotten."""
        await self._db.execute(delete(Delivery).where(Delivery.created_at < before))
        told = select(Delivery.event_id).where(Delivery.event_id == Event.id).exists()
        gone = await self._db.execute(
            delete(Event)
            .where(Event.created_at < before, Event.number.is_not(None), ~told)
            .returning(Event.id)
        )
        return len(gone.all())

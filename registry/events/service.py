"""Events: written where something happens, published by the courier, listed."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.events.errors import EventNotFound
from registry.events.model import Delivery, Event, EventType
from registry.events.repository import EventRepository, Outbox
from registry.kit.ids import new_id
from registry.kit.pages import Cursors, Page

_AT_ONCE = 200


def emit(db: AsyncSession, account_id: str, kind: EventType, data: Mapping[str, Any]) -> Event:
    """Say in the caller's transaction what it does: if that is undone, nobody hears of it."""
    event = Event(id=new_id("evt"), account_id=account_id, type=kind, data=dict(data))
    EventRepository(db, account_id).add(event)
    return event


async def events(
    db: AsyncSession,
    actor: Actor,
    *,
    kind: EventType | None = None,
    after: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[Event]:
    """Oldest first; `after` is the id of an event that the reader has seen."""
    cursors = Cursors((int,), ("events", actor.account_id, kind, after))
    position = cursors.read(cursor)
    rows = EventRepository(db, actor.account_id)
    start = int(position[0]) if position else await _seen(rows, after)
    found = await rows.events(after=start, kind=kind, limit=limit + 1)
    return cursors.page(found, limit, lambda event: (event.number or 0,))


async def _seen(rows: EventRepository, event_id: str | None) -> int:
    if event_id is None:
        return 0
    number = await rows.number(event_id)
    if number is None:
        raise EventNotFound(event_id)
    return number


async def has_unpublished(db: AsyncSession) -> bool:
    return await Outbox(db).has_unpublished()


async def publish(db: AsyncSession) -> int:
    """Number the events that were committed since, and address them to who wants them."""
    outbox = Outbox(db)
    fresh = await outbox.unpublished(limit=_AT_ONCE)
    by_account: dict[str, list[Event]] = defaultdict(list)
    for event in fresh:
        by_account[event.account_id].append(event)
    for account_id in sorted(by_account):  # in one order, or two publishers would block each other
        found = by_account[account_id]
        last = await outbox.take_numbers(account_id, len(found))
        webhooks = await outbox.subscribed(account_id)
        for number, event in enumerate(found, last - len(found) + 1):
            event.number = number
            outbox.add(*(delivery(event, hook.id) for hook in webhooks if hook.wants(event)))
    await db.flush()
    return len(fresh)


def delivery(event: Event, webhook_id: str) -> Delivery:
    return Delivery(
        id=new_id("dlv"), account_id=event.account_id, webhook_id=webhook_id, event_id=event.id
    )


async def prune(db: AsyncSession, *, before: datetime) -> int:
    return await Outbox(db).prune(before=before)

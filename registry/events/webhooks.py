"""Webhooks and what was delivered to them. Whoever may change one is an admin."""

import base64
import re
import secrets
from collections.abc import Sequence
from typing import TypedDict

from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.events import service
from registry.events.errors import (
    DeliveryNotFound,
    DeliveryPending,
    InvalidWebhook,
    TooManyWebhooks,
    WebhookDisabled,
    WebhookNotFound,
)
from registry.events.model import Delivery, DeliveryStatus, EventType, Webhook
from registry.events.repository import EventRepository
from registry.kit.clock import now
from registry.kit.ids import new_id
from registry.kit.pages import Cursors, Page

MOST_WEBHOOKS = 20
LONGEST_DESCRIPTION = 1024
_ID = re.compile(r"[a-z0-9_]{1,64}")


class Changes(TypedDict, total=False):
    """What is left out stays. Who names a URL has had it checked, which takes too long here."""

    url: str
    types: Sequence[EventType]
    description: str
    enabled: bool


async def create(
    db: AsyncSession,
    actor: Actor,
    *,
    url: str,
    types: Sequence[EventType] = (),
    description: str = "",
) -> Webhook:
    _check_description(description)
    rows = EventRepository(db, actor.account_id)
    if await rows.count_webhooks() >= MOST_WEBHOOKS:
        raise TooManyWebhooks(MOST_WEBHOOKS)
    webhook = Webhook(
        id=new_id("whk"),
        account_id=actor.account_id,
        url=url,
        types=_checked(types),
        description=description,
        secret=_new_secret(),
    )
    rows.add(webhook)
    await db.flush()
    return webhook


async def webhooks(
    db: AsyncSession, actor: Actor, *, limit: int = 50, cursor: str | None = None
) -> Page[Webhook]:
    """Oldest first."""
    cursors = Cursors((str,), ("webhooks", actor.account_id))
    position = cursors.read(cursor)
    rows = await EventRepository(db, actor.account_id).webhooks(
        after=str(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda webhook: (webhook.id,))


async def require_webhook(
    db: AsyncSession, actor: Actor, webhook_id: str, *, lock: bool = False
) -> Webhook:
    known = _ID.fullmatch(webhook_id)
    rows = EventRepository(db, actor.account_id)
    webhook = await rows.webhook(webhook_id, lock=lock) if known else None
    if webhook is None:
        raise WebhookNotFound(webhook_id)
    return webhook


async def edit(db: AsyncSession, actor: Actor, webhook_id: str, changes: Changes) -> Webhook:
    """Enabling one again sends what waited for it."""
    _check_description(changes.get("description", ""))
    webhook = await require_webhook(db, actor, webhook_id, lock=True)
    webhook.url = changes.get("url", webhook.url)
    webhook.description = changes.get("description", webhook.description)
    if "types" in changes:
        webhook.types = _checked(changes["types"])
    if "enabled" in changes:
        webhook.enable(changes["enabled"], why="disabled by an admin")
    await db.flush()
    return webhook


async def rotate(db: AsyncSession, actor: Actor, webhook_id: str) -> Webhook:
    """A new secret. The one before signs beside it for a day, so that no receiver is cut off."""
    webhook = await require_webhook(db, actor, webhook_id, lock=True)
    webhook.rotate(_new_secret(), at=now())
    await db.flush()
    return webhook


async def remove(db: AsyncSession, actor: Actor, webhook_id: str) -> None:
    webhook = await require_webhook(db, actor, webhook_id, lock=True)
    await EventRepository(db, actor.account_id).remove_webhook(webhook)


async def probe(db: AsyncSession, actor: Actor, webhook_id: str) -> Delivery:
    """Send this webhook, and no other, an event that means nothing."""
    webhook = await require_webhook(db, actor, webhook_id)
    if not webhook.is_enabled:
        raise WebhookDisabled(webhook_id)
    event = service.emit(db, actor.account_id, EventType.webhook_test, {"webhook": webhook_id})
    sent = service.delivery(event, webhook_id)
    sent.event = event
    EventRepository(db, actor.account_id).add(sent)
    await db.flush()
    return sent


async def deliveries(
    db: AsyncSession,
    actor: Actor,
    webhook_id: str,
    *,
    status: DeliveryStatus | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[Delivery]:
    """Newest first."""
    webhook = await require_webhook(db, actor, webhook_id)
    cursors = Cursors((str,), ("deliveries", webhook.id, status))
    position = cursors.read(cursor)
    rows = await EventRepository(db, actor.account_id).deliveries(
        webhook.id, status=status, before=str(position[0]) if position else None, limit=limit + 1
    )
    return cursors.page(rows, limit, lambda delivery: (delivery.id,))


async def redeliver(db: AsyncSession, actor: Actor, webhook_id: str, delivery_id: str) -> Delivery:
    """Send again what was given up, or was delivered: the same event, under the same id."""
    webhook = await require_webhook(db, actor, webhook_id)
    known = _ID.fullmatch(delivery_id)
    rows = EventRepository(db, actor.account_id)
    found = await rows.delivery(webhook.id, delivery_id) if known else None
    if found is None:
        raise DeliveryNotFound(delivery_id)
    if not webhook.is_enabled:
        raise WebhookDisabled(webhook_id)
    if found.status == DeliveryStatus.pending:
        raise DeliveryPending(found.id, next_at=found.next_at.isoformat(timespec="seconds"))
    found.again(at=now())
    await db.flush()
    return found


def _new_secret() -> str:
    """As Standard Webhooks writes them: 24 random bytes in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()


def _checked(types: Sequence[EventType]) -> list[str]:
    if EventType.webhook_test in types:
        raise InvalidWebhook("types", "webhook.test is sent by asking for it, and to one webhook")
    return sorted(set(types))


def _check_description(text: str) -> None:
    if len(text) > LONGEST_DESCRIPTION or "\0" in text:
        raise InvalidWebhook(
            "description", f"longer than {LONGEST_DESCRIPTION} characters, or with a NUL in it"
        )

"""Events, and the webhooks that they are told to."""

from typing import Annotated, Any, Self, cast

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, StrictBool

from registry.api.auth import Admin, Viewer
from registry.api.idempotency import NOT_KEPT
from registry.api.schemas import Cursor, Limit, Listing, Moment
from registry.events import service, webhooks
from registry.events.model import Delivery, DeliveryStatus, Event, EventType, Webhook
from registry.events.targets import LONGEST_URL, Targets
from registry.kit.rest import Db, Form, ReadDb

router = APIRouter(prefix="/v1", tags=["events and webhooks"])

Url = Annotated[str, Field(max_length=LONGEST_URL)]
After = Annotated[
    str | None, Query(pattern="^[a-z0-9_]{1,64}$", description="The id of the last event you saw.")
]
Types = Annotated[list[EventType], Field(description="Which to send; none means all.")]


class EventView(BaseModel):
    id: str = Field(description="Also the `webhook-id` it is delivered under.")
    number: int = Field(description="Counts the account's events without a gap.")
    type: EventType
    data: dict[str, Any]
    created_at: Moment

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls.model_validate(event, from_attributes=True)


class NewWebhook(Form):
    url: Url
    types: Types = []  # noqa: RUF012 - Pydantic copies it
    description: str = ""


class WebhookEdit(Form):
    """What is left out stays as it is."""

    url: Url = ""
    types: Types = []  # noqa: RUF012 - Pydantic copies it
    description: str = ""
    enabled: StrictBool = True

    @property
    def changes(self) -> webhooks.Changes:
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return cast(webhooks.Changes, given)


class WebhookView(BaseModel):
    id: str
    url: str
    types: Types
    description: str
    enabled: bool
    why_disabled: str | None
    created_at: Moment
    updated_at: Moment

    @classmethod
    def of(cls, webhook: Webhook, **more: str) -> Self:
        return cls(
            id=webhook.id,
            url=webhook.url,
            types=[EventType(each) for each in webhook.types],
            description=webhook.description,
            enabled=webhook.is_enabled,
            why_disabled=webhook.why_disabled,
            created_at=webhook.created_at,
            updated_at=webhook.updated_at,
            **more,
        )


class WebhookWithSecret(WebhookView):
    secret: str = Field(description="Verifies what is sent. It is not shown again.")


class DeliveryView(BaseModel):
    id: str
    event: str = Field(description="The event's id.")
    type: EventType
    status: DeliveryStatus
    attempts: int
    next_at: Moment | None = Field(description="When it is tried next; null once it has ended.")
    last_status: int | None = Field(description="What the receiver answered last.")
    last_error: str | None
    created_at: Moment
    delivered_at: Moment | None

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        is_pending = delivery.status == DeliveryStatus.pending
        return cls(
            id=delivery.id,
            event=delivery.event_id,
            type=EventType(delivery.event.type),
            status=DeliveryStatus(delivery.status),
            attempts=delivery.attempts,
            next_at=delivery.next_at if is_pending else None,
            last_status=delivery.last_status,
            last_error=delivery.last_error,
            created_at=delivery.created_at,
            delivered_at=delivery.delivered_at,
        )


@router.get("/events")
async def list_events(
    actor: Viewer,
    db: ReadDb,
    type_: Annotated[EventType | None, Query(alias="type")] = None,
    after: After = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Listing[EventView]:
    """Oldest first, a moment after they happened. To follow them, ask `after` the last one."""
    page = await service.events(db, actor, kind=type_, after=after, limit=limit, cursor=cursor)
    return Listing.of(page, EventView.of)


@router.get("/webhooks")
async def list_webhooks(
    actor: Admin, db: ReadDb, limit: Limit = 50, cursor: Cursor = None
) -> Listing[WebhookView]:
    page = await webhooks.webhooks(db, actor, limit=limit, cursor=cursor)
    return Listing.of(page, WebhookView.of)


@router.post("/webhooks", status_code=201)
async def create_webhook(
    request: Request, response: Response, actor: Admin, db: Db, new: NewWebhook
) -> WebhookWithSecret:
    """The answer has the secret, this once: it is not given again to the same Idempotency-Key."""
    await _check(request, new.url)
    response.headers.update(NOT_KEPT)
    made = await webhooks.create(
        db, actor, url=new.url, types=new.types, description=new.description
    )
    return WebhookWithSecret.of(made, secret=made.secret)


@router.get("/webhooks/{webhook}")
async def show_webhook(actor: Admin, db: ReadDb, webhook: str) -> WebhookView:
    return WebhookView.of(await webhooks.require_webhook(db, actor, webhook))


@router.patch("/webhooks/{webhook}")
async def edit_webhook(
    request: Request, actor: Admin, db: Db, webhook: str, edit: WebhookEdit
) -> WebhookView:
    """Enabled again, it is sent what waited for it."""
    if "url" in edit.model_fields_set:
        await _check(request, edit.url)
    return WebhookView.of(await webhooks.edit(db, actor, webhook, edit.changes))


@router.delete("/webhooks/{webhook}", status_code=204)
async def delete_webhook(actor: Admin, db: Db, webhook: str) -> None:
    """What was on its way to it is forgotten."""
    await webhooks.remove(db, actor, webhook)


@router.post("/webhooks/{webhook}/rotate")
async def rotate_secret(
    response: Response, actor: Admin, db: Db, webhook: str
) -> WebhookWithSecret:
    """A new secret, shown this once. For a day, the old one signs beside it."""
    response.headers.update(NOT_KEPT)
    rotated = await webhooks.rotate(db, actor, webhook)
    return WebhookWithSecret.of(rotated, secret=rotated.secret)


@router.post("/webhooks/{webhook}/test", status_code=202)
async def send_test(actor: Admin, db: Db, webhook: str) -> DeliveryView:
    """Sends it an event of type `webhook.test`."""
    return DeliveryView.of(await webhooks.probe(db, actor, webhook))


@router.get("/webhooks/{webhook}/deliveries")
async def list_deliveries(
    actor: Admin,
    db: ReadDb,
    webhook: str,
    status: DeliveryStatus | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Listing[DeliveryView]:
    """Newest first. `status=dead` lists what was given up."""
    page = await webhooks.deliveries(db, actor, webhook, status=status, limit=limit, cursor=cursor)
    return Listing.of(page, DeliveryView.of)


@router.post("/webhooks/{webhook}/deliveries/{delivery}/redeliver", status_code=202)
async def redeliver(actor: Admin, db: Db, webhook: str, delivery: str) -> DeliveryView:
    """Once more from the start: the same event under the same id."""
    return DeliveryView.of(await webhooks.redeliver(db, actor, webhook, delivery))


async def _check(request: Request, url: str) -> None:
    """Resolves a name, so it comes before the first query, with which a transaction begins."""
    targets: Targets = request.app.state.targets
    await targets.check(url)

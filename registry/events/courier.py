"""Carries events to webhooks, at least once, for as long as the service runs.

All that it knows is in the rows. Several couriers on one database share the work: an attempt is
claimed before it is made, and one that never ends is made again by whoever looks next.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from registry.events import sending, service
from registry.events.model import Delivery
from registry.events.repository import Outbox
from registry.events.sending import Answer, Sender
from registry.events.targets import Targets
from registry.idempotency import service as idempotency
from registry.kit.clock import now
from registry.kit.db import Database

log = structlog.get_logger()
_LANES = 4
"""Attempts at once for one webhook: a slow receiver holds up its own events alone."""
_PRUNE_EVERY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Timing:
    poll_s: float = 0.5
    timeout_s: float = 15.0
    keep: timedelta = timedelta(days=30)

    @property
    def lease(self) -> timedelta:
        """An attempt that has not been settled by then died with its process."""
        return timedelta(seconds=2 * self.timeout_s + 5)


class Courier:
    """`run()` until cancelled, `close()`."""

    def __init__(
        self, database: Database, targets: Targets, *, timing: Timing | None = None
    ) -> None:
        self._database = database
        self._timing = timing or Timing()
        self._sender = Sender(targets, timeout_s=self._timing.timeout_s)
        self._attempts: set[asyncio.Task[None]] = set()
        self._busy: Counter[str] = Counter()
        self._free = asyncio.Event()
        self._prune_at = now()

    async def run(self) -> None:
        while True:
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001 - the loop outlives a database that is away
                await log.aexception("courier.failed", exc_info=error)
            await self._pause()

    async def close(self) -> None:
        """What was being sent is sent again by the next courier."""
        for attempt in self._attempts:
            attempt.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        await self._sender.close()

    async def _round(self) -> None:
        await self._publish()
        async with self._database.read() as db:
            due = await Outbox(db).due(at=now())
        for webhook_id in due:
            for delivery in await self._claim(webhook_id):
                self._start(delivery)
        if now() >= self._prune_at:
            await self._prune()

    async def _publish(self) -> None:
        """Looks before it writes: a writer of SQLite keeps all others waiting."""
        async with self._database.read() as db:
            waiting = await service.has_unpublished(db)
        while waiting:
            async with self._database.begin() as db:
                waiting = bool(await service.publish(db))

    async def _claim(self, webhook_id: str) -> Sequence[Delivery]:
        room = _LANES - self._busy[webhook_id]
        if room <= 0:
            return ()
        async with self._database.begin() as db:
            moment = now()
            return await Outbox(db).claim(
                webhook_id, at=moment, until=moment + self._timing.lease, limit=room
            )

    def _start(self, delivery: Delivery) -> None:
        self._busy[delivery.webhook_id] += 1
        attempt = asyncio.create_task(self._attempt(delivery))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)

    async def _attempt(self, delivery: Delivery) -> None:
        try:
            answer = await self._send(delivery)
            async with self._database.begin() as db:
                await settle(Outbox(db), delivery, answer)
            await log.ainfo(
                "webhook.attempted",
                webhook=delivery.webhook_id,
                event_id=delivery.event_id,
                attempt=delivery.attempts,
                status=answer.status,
                error=answer.error,
            )
        except Exception as error:  # noqa: BLE001 - it is due again when its claim runs out
            await log.aexception("webhook.failed", delivery=delivery.id, exc_info=error)
        finally:
            self._busy[delivery.webhook_id] -= 1
            self._free.set()

    async def _send(self, delivery: Delivery) -> Answer:
        event, webhook, moment = delivery.event, delivery.webhook, now()
        body = sending.document(event)
        headers = sending.signed(event, body, webhook.secrets(at=moment), at=moment)
        return await self._sender.send(webhook.url, body.encode(), headers)

    async def _prune(self) -> None:
        """What is old, here and among the keys of requests, which nobody else tidies."""
        self._prune_at = now() + _PRUNE_EVERY
        async with self._database.begin() as db:
            count = await service.prune(db, before=now() - self._timing.keep)
            await idempotency.prune(db, at=now())
        if count:
            await log.ainfo("events.pruned", count=count)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._timing.poll_s):
                await self._free.wait()
        except TimeoutError:
            return
        self._free.clear()


async def settle(outbox: Outbox, attempt: Delivery, answer: Answer) -> None:
    """Write down how an attempt ended, unless it was taken over meanwhile."""
    delivery = await outbox.attempted(attempt.id, attempt=attempt.attempts)
    if delivery is None:
        return
    if answer.is_delivered and answer.status is not None:
        delivery.succeed(answer.status, at=now())
        return
    if answer.is_gone:
        delivery.webhook.enable(False, why="its receiver answered 410 Gone")
    delivery.fail(
        answer.status,
        answer.error,
        at=now(),
        luck=random.random(),
        final=answer.is_gone,
    )

"""Accept, claim and complete operations. Every function is one part of one transaction."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.artifacts.errors import CorruptArtifact
from registry.artifacts.store import BlobStore
from registry.kit.clock import now
from registry.kit.errors import Kind, ServiceError
from registry.kit.ids import new_id
from registry.packages.service import PackageRef
from registry.usage import service as usage
from registry.usage.model import Category
from session import wire
from session.engine.port import LoraConfig
from session.lifecycle import service as lifecycle
from session.lifecycle.model import TrainingSession
from session.lifecycle.repository import SessionRepository
from session.operations.errors import InvalidBody, InvalidNumber, NumberTaken, OperationNotFound
from session.operations.model import Operation, OperationStatus
from session.operations.repository import LogRepository, OperationRepository

INLINE_BYTES = 64 * 1024
_MAX_NUMBER = 2**31 - 1
_PRUNED = {
    "kind": Kind.not_found.value,
    "message": "it completed, but its result is not kept any more: its session ended long ago",
}


@dataclass(frozen=True, slots=True)
class StoredBody:
    """A body that is safe: in the row that will be written, or already in the object store."""

    digest: str
    inline: bytes | None
    key: str | None

    @property
    def is_large(self) -> bool:
        """More than a row holds."""
        return self.inline is not None and len(self.inline) > INLINE_BYTES


@dataclass(frozen=True, slots=True)
class NewOperation:
    """`source` is the version that it will load."""

    number: int
    token: str
    kind: str
    stored: StoredBody
    source: str | None = None


def read_submission(raw: bytes, *, json: bool) -> wire.Submission:
    try:
        submission = wire.unpack(raw, wire.Submission, json=json)
    except wire.WireError as error:
        raise InvalidBody(str(error)) from None
    if submission.version != wire.VERSION:
        raise InvalidBody(f"version {submission.version} is unknown; {wire.VERSION} is spoken here")
    if not 0 <= submission.number <= _MAX_NUMBER:
        raise InvalidBody(f"number: {submission.number} is not between 0 and {_MAX_NUMBER}")
    if not 0 < len(submission.token) <= 128 or "\0" in submission.token:
        raise InvalidBody("token: 1 to 128 characters without NUL")
    if isinstance(submission.body, wire.Create):
        raise InvalidBody("create: a session is created by POST /v1/sessions")
    return submission


def packed_body(body: wire.Body) -> StoredBody:
    """As it goes into the row, where it is small enough."""
    packed = wire.pack(body)
    return StoredBody(sha256(packed).hexdigest(), packed, None)


async def put_aside(store: BlobStore, session: TrainingSession, body: StoredBody) -> StoredBody:
    """Keep a large body before its row. A row that never comes leaves an object that nobody
    names."""
    assert body.inline is not None
    key = f"{session.account_id}/sessions/{session.id}/bodies/{new_id('body')}"
    await store.put_bytes(key, body.inline)
    return StoredBody(body.digest, None, key)


async def drop_duplicate(store: BlobStore, operation: Operation, stored: StoredBody) -> None:
    """The body of a retry was kept already, by the operation that it turned out to be."""
    if stored.key is not None and operation.body_key != stored.key:
        await store.delete(stored.key)


async def load_body(store: BlobStore, operation: Operation) -> wire.Body:
    packed = operation.body
    if packed is None:
        assert operation.body_key is not None
        packed = await store.read(operation.body_key)
        if sha256(packed).hexdigest() != operation.body_hash:
            raise CorruptArtifact(operation.body_key, "it is not the body that was accepted")
    return wire.unpack(packed, wire.Body)  # type: ignore[arg-type]  # a union is no class


async def accept_next(
    db: AsyncSession, actor: Actor, session_name: str, new: NewOperation
) -> Operation | None:
    """Add an operation with a number above all others, as it usually has: one statement finds and
    locks its session. None where `accept` has to look."""
    if new.source is not None:
        return None
    sessions = SessionRepository(db, actor.account_id)
    session_id = await sessions.reached_next(session_name, new.number)
    return None if session_id is None else await _add(db, session_id, new)


async def accept(db: AsyncSession, session: TrainingSession, new: NewOperation) -> Operation:
    """Add an operation to the log of a locked session, or find it there. Early numbers wait for
    those before them. From now on the session holds what it will load."""
    known = None
    if new.number <= session.last_number:  # no other can be there, as the session is locked
        known = await LogRepository(db, session.id).at(new.number)
    if known is None:
        session.require_open()
        if new.number < session.next_number:
            raise InvalidNumber(new.number, next_number=session.last_number + 1)
        known = await _add(db, session.id, new)
        await SessionRepository(db, session.account_id).reached(session, new.number)
        if new.source is not None:
            await _hold(db, session, new.source)
    given = new.stored.digest
    if not known.is_retry(token=new.token, body_hash=given):
        raise NumberTaken(new.number, operation_id=known.id, held=known.body_hash, given=given)
    return known


async def _hold(db: AsyncSession, session: TrainingSession, source: str) -> None:
    """A load of what cannot be held is accepted, like all that is invalid, and fails at its place
    in the log."""
    with suppress(ServiceError):
        await lifecycle.hold(db, session, PackageRef.parse(source))


async def accept_creation(
    db: AsyncSession,
    session: TrainingSession,
    lora: LoraConfig,
    *,
    source: str | None,
    with_optimizer: bool,
) -> Operation:
    """Operation 0, which every session begins with."""
    adapter = wire.Lora(lora.rank, lora.alpha, lora.targets, lora.seed)
    stored = packed_body(wire.Create(adapter, source, with_optimizer))
    return await accept(db, session, NewOperation(0, session.id, "create", stored))


async def _add(db: AsyncSession, session_id: str, new: NewOperation) -> Operation:
    operation = Operation(
        id=new_id("op"),
        session_id=session_id,
        number=new.number,
        kind=new.kind,
        status=OperationStatus.pending,
        client_token=new.token,
        body_hash=new.stored.digest,
        body=new.stored.inline,
        body_key=new.stored.key,
        created_at=now(),
    )
    await LogRepository(db, session_id).add(operation)
    return operation


async def require_operation(db: AsyncSession, actor: Actor, operation_id: str) -> Operation:
    found = await OperationRepository(db, actor.account_id).find(operation_id)
    if found is None:
        raise OperationNotFound(operation_id)
    return found


def as_wire(operation: Operation) -> wire.Operation:
    error = _PRUNED if operation.is_pruned else operation.error
    return wire.Operation(
        id=operation.id,
        session=operation.session_id,
        number=operation.number,
        kind=operation.kind,
        status=OperationStatus(operation.status).value,
        result=wire.unpack(operation.result, wire.Result) if operation.result else None,
        error=wire.Failure(error["kind"], error["message"]) if error else None,
    )


async def claim(db: AsyncSession, session: TrainingSession, number: int) -> None:
    """Say that the operation with this number runs; the log is at the next."""
    await LogRepository(db, session.id).claim(number)
    session.next_number = max(session.next_number, number + 1)


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom an operation is metered, and on what."""

    account_id: str
    session_id: str
    base_model: str


async def complete(
    db: AsyncSession,
    operation: Operation,
    packed: bytes,
    *,
    owner: Owner,
    counts: Mapping[Category, int],
) -> None:
    """Result, status and usage become true together. `packed` is a `wire.Result`."""
    log = LogRepository(db, owner.session_id)
    await log.end(operation.id, OperationStatus.completed, result=packed)
    await usage.record(
        db,
        account_id=owner.account_id,
        operation_id=operation.id,
        model=owner.base_model,
        counts=counts,
        session_id=owner.session_id,
    )


async def fail(db: AsyncSession, operation: Operation, failure: wire.Failure) -> None:
    """A failed operation keeps its place and costs nothing."""
    log, error = LogRepository(db, operation.session_id), msgspec.structs.asdict(failure)
    await log.end(operation.id, OperationStatus.failed, error=error)


def completed(operation: Operation, result: wire.Result) -> wire.Operation:
    return _ended(operation, "completed", result=result)


def failed(operation: Operation, failure: wire.Failure) -> wire.Operation:
    return _ended(operation, "failed", error=failure)


def _ended(
    operation: Operation,
    status: wire.OperationStatus,
    *,
    result: wire.Result | None = None,
    error: wire.Failure | None = None,
) -> wire.Operation:
    """As its row says it, once that is committed."""
    return wire.Operation(
        operation.id, operation.session_id, operation.number, operation.kind, status, result, error
    )


async def skip_open(db: AsyncSession, session: TrainingSession, *, why: str) -> list[str]:
    """End what can no longer run, each with the reason; their ids."""
    error = {"kind": Kind.conflict.value, "message": why}
    return await LogRepository(db, session.id).skip_open(error)

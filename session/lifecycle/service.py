"""Create, look up, stop and measure training sessions."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from secrets import randbelow, token_hex

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor, Role
from registry.kit.clock import now
from registry.kit.ids import new_id
from registry.kit.names import NAME, NAME_RULE
from registry.models import service as models
from registry.models.model import BaseModel
from registry.packages import holds
from registry.packages import service as packages
from registry.packages.model import HolderKind, Package
from registry.packages.service import PackageRef, parse_ref
from session.engine.port import LoraConfig
from session.lifecycle.errors import InvalidSession, SessionNameTaken, SessionNotFound
from session.lifecycle.model import OPEN, SessionMetric, Status, TrainingSession
from session.lifecycle.repository import SessionRepository, set_metrics

DEFAULT_GROUP = "default"
MAX_RANK = 256
MAX_METRICS = 200
"""Of one call: each is a row."""
_ACTIVE_FOR = timedelta(seconds=30)
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_UNEMBED = ("lm_head",)


@dataclass(frozen=True, slots=True)
class LoraWish:
    """What a caller says of the adapter; everything unsaid has a default."""

    rank: int = 32
    alpha: float | None = None
    seed: int | None = None
    targets: tuple[str, ...] | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    def settle(self) -> LoraConfig:
        """Check and complete. A missing seed is drawn here, so that a replay uses the same."""
        if not 1 <= self.rank <= MAX_RANK:
            raise InvalidSession("lora.rank", f"{self.rank} is not between 1 and {MAX_RANK}")
        alpha = 32.0 if self.alpha is None else self.alpha
        if not (math.isfinite(alpha) and alpha > 0):
            raise InvalidSession("lora.alpha", f"{alpha} is not a positive number")
        flags = {_ATTENTION: self.train_attn, _MLP: self.train_mlp, _UNEMBED: self.train_unembed}
        named = tuple(name for names, wanted in flags.items() if wanted for name in names)
        targets = named if self.targets is None else tuple(dict.fromkeys(self.targets))
        if not targets:
            raise InvalidSession("lora.targets", "nothing is left to train")
        seed = randbelow(2**31) if self.seed is None else self.seed
        if not 0 <= seed < 2**63:
            raise InvalidSession("lora.seed", f"{seed} is not between 0 and 2**63 - 1")
        return LoraConfig(self.rank, alpha, targets, seed)


@dataclass(frozen=True, slots=True)
class SessionWish:
    base_model: str | None = None
    name: str | None = None
    group: str | None = None
    lora: LoraWish = LoraWish()
    from_version: str | None = None
    with_optimizer: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)


async def create(
    db: AsyncSession, actor: Actor, wish: SessionWish
) -> tuple[TrainingSession, LoraConfig]:
    """Add the session's row. Resuming adopts base, rank, alpha and targets from the version."""
    parent = await _parent(db, actor, wish)
    base = await _base(db, wish, parent)
    lora = _adopted(parent) if parent else wish.lora.settle()
    group = wish.group or (parent.group.name if parent else DEFAULT_GROUP)
    await packages.ensure_group(db, actor, group)
    session = TrainingSession(
        id=new_id("ses"),
        account_id=actor.account_id,
        name=await _free_name(db, actor, wish.name, base.name),
        status=Status.created,
        base_model=base.name,
        base_digest=base.digest,
        lora=lora_document(lora),
        group_name=group,
        parent_id=parent.id if parent else None,
        parent_ref=parent.ref if parent else None,
        user_metadata=dict(wish.metadata),
    )
    try:
        async with db.begin_nested():
            SessionRepository(db, actor.account_id).add(session)
    except IntegrityError:  # somebody took the name since it was looked up
        raise SessionNameTaken(session.name) from None
    if session.parent_ref is not None:
        await hold(db, session, PackageRef.parse(session.parent_ref))
    return session, lora


async def hold(db: AsyncSession, session: TrainingSession, ref: PackageRef) -> None:
    """Keep a version while the session lives: whoever replays its log loads it again."""
    actor = Actor(session.account_id, Role.member)
    package = await packages.require_live(db, actor, ref)
    if session.is_live:
        await holds.place(
            db,
            actor,
            package,
            holder_kind=HolderKind.session,
            holder_id=session.id,
            holder_name=session.name,
        )


async def end(
    db: AsyncSession, session: TrainingSession, status: Status, *, error: str | None = None
) -> None:
    """Its last state, in which it holds nothing."""
    session.move(status, error=error)
    actor = Actor(session.account_id, Role.member)
    await holds.release(db, actor, holder_kind=HolderKind.session, holder_id=session.id)


async def _parent(db: AsyncSession, actor: Actor, wish: SessionWish) -> Package | None:
    if wish.from_version is None:
        if wish.base_model is None:
            raise InvalidSession("base_model", "missing; name a base model, or a from_version")
        return None
    package = await packages.require_live(db, actor, parse_ref(wish.from_version))
    package.require_adapter()
    if wish.with_optimizer:
        packages.require_resumable(package)
    return package


async def _base(db: AsyncSession, wish: SessionWish, parent: Package | None) -> BaseModel:
    name = parent.base_model if parent else wish.base_model
    assert name is not None
    base = await models.require_base_model(db, name)
    if parent and wish.base_model not in (None, parent.base_model):
        raise InvalidSession(
            "base_model", f"{wish.from_version} was trained on {parent.base_model}"
        )
    if parent and base.digest != parent.base_digest:
        raise InvalidSession(
            "from_version",
            f"trained on {name} with digest {parent.base_digest}; {base.digest} is registered now",
        )
    return base


def _adopted(parent: Package) -> LoraConfig:
    return lora_config(parent.lora)


def lora_document(lora: LoraConfig) -> dict[str, object]:
    return {
        "rank": lora.rank,
        "alpha": lora.alpha,
        "targets": list(lora.targets),
        "seed": lora.seed,
    }


def lora_config(document: Mapping[str, object]) -> LoraConfig:
    return LoraConfig(
        rank=int(str(document["rank"])),
        alpha=float(str(document["alpha"])),
        targets=tuple(document["targets"]),  # type: ignore[arg-type]  # JSON of our own making
        seed=int(str(document["seed"])),
    )


async def _free_name(db: AsyncSession, actor: Actor, wanted: str | None, base: str) -> str:
    if wanted is None:
        stem = re.sub(r"[^A-Za-z0-9]+", "-", base.rpartition("/")[2]).strip("-")[:50].rstrip("-")
        return f"{stem or 'session'}-{token_hex(4)}"
    if not NAME.fullmatch(wanted):
        raise InvalidSession("name", NAME_RULE)
    if await SessionRepository(db, actor.account_id).find(wanted):
        raise SessionNameTaken(wanted)
    return wanted


async def session(db: AsyncSession, actor: Actor, name_or_id: str) -> TrainingSession | None:
    return await SessionRepository(db, actor.account_id).find(name_or_id)


async def require_session(
    db: AsyncSession, actor: Actor, name_or_id: str, *, lock: bool = False
) -> TrainingSession:
    """Locked for who goes on to change it, or to add to its log."""
    found = await SessionRepository(db, actor.account_id).find(name_or_id, lock=lock)
    if found is None:
        raise SessionNotFound(name_or_id)
    return found


async def running(db: AsyncSession, actor: Actor) -> Sequence[TrainingSession]:
    return await SessionRepository(db, actor.account_id).running()


async def stop(db: AsyncSession, actor: Actor, name_or_id: str) -> TrainingSession:
    """Ask for the end: what was accepted before is drained first. Asking twice is no error."""
    found = await require_session(db, actor, name_or_id, lock=True)
    if found.status in OPEN:
        found.move(Status.stopping)
    await db.flush()
    return found


async def beat(db: AsyncSession, actor: Actor, name_or_id: str) -> TrainingSession:
    """Somebody still wants it, whether or not there is work for it."""
    found = await require_session(db, actor, name_or_id, lock=True)
    found.require_live()
    found.last_active_at = now()
    await db.flush()
    return found


async def is_sampled(
    db: AsyncSession, actor: Actor, session_id: str, *, active_at: datetime
) -> None:
    """So it is not idle. `active_at` is when it was active last, as its row said: what samples by
    the hundred does not write that each time."""
    at = now()
    if at - active_at > _ACTIVE_FOR:
        await SessionRepository(db, actor.account_id).is_active(session_id, at=at)


async def log_metrics(
    db: AsyncSession, actor: Actor, name_or_id: str, *, step: int, numbers: Mapping[str, float]
) -> None:
    """Keep the client's own numbers beside the measured ones."""
    found = await require_session(db, actor, name_or_id, lock=True)
    if not 0 <= step < 2**31:
        raise InvalidSession("step", f"{step} is not between 0 and 2**31 - 1")
    if len(numbers) > MAX_METRICS:
        raise InvalidSession("metrics", f"{len(numbers)} names; one call takes {MAX_METRICS}")
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise InvalidSession(f"metrics.{name}", f"{value} is not a finite number")
        if not 0 < len(name) <= 128 or "\0" in name:
            raise InvalidSession(
                "metrics", f"the name {name[:20]!r} is not 1 to 128 characters without NUL"
            )
    found.last_active_at = now()
    await set_metrics(db, found.id, step=step, numbers=numbers)


async def metrics(db: AsyncSession, actor: Actor, name_or_id: str) -> Sequence[SessionMetric]:
    found = await require_session(db, actor, name_or_id)
    return await SessionRepository(db, actor.account_id).metrics(found.id)

"""Check a sampling request, find its weights, keep its answer."""

import math
from datetime import datetime
from hashlib import sha256

import numpy as np
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from registry.access.actor import Actor
from registry.kit.clock import now
from registry.kit.ids import new_id
from registry.models import service as models
from registry.models.model import BaseModel
from registry.packages import service as packages
from registry.packages.service import Ref, parse_ref
from registry.usage import service as usage
from registry.usage.model import Category
from session import wire
from session.engine.port import BaseRef, SampleRequest
from session.lifecycle import service as lifecycle
from session.sampling.errors import InvalidSampling, TokenReused, WeightsNotFound
from session.sampling.frames import Target
from session.sampling.model import SamplingRequest, SamplingStatus
from session.sampling.repository import SamplingRepository

MAX_SAMPLES = 1000


def check(form: wire.Sampling) -> None:
    """Refuse, by field, what no engine could make sense of."""
    try:
        prompt = form.prompt.array()
    except wire.WireError as error:
        raise InvalidSampling("prompt", str(error)) from None
    finite = math.isfinite(form.temperature)
    faults = (
        ("version", form.version != wire.VERSION, f"only {wire.VERSION} is spoken here"),
        ("token", not 0 < len(form.token) <= 128 or "\0" in form.token, "1 to 128 characters"),
        ("prompt", prompt.ndim != 1 or prompt.dtype != np.int64, "one row of int64 tokens"),
        ("prompt", prompt.size == 0, "no tokens"),
        ("n", not 1 <= form.n <= MAX_SAMPLES, f"{form.n} is not between 1 and {MAX_SAMPLES}"),
        ("max_tokens", not 0 <= form.max_tokens < 2**31, f"{form.max_tokens} is out of range"),
        ("temperature", not finite or form.temperature < 0, f"{form.temperature} is not >= 0"),
        ("top_k", not _is_top_k(form.top_k), f"{form.top_k} is neither -1 nor >= 1"),
        ("top_p", not 0 < form.top_p <= 1, f"{form.top_p} is not above 0 and at most 1"),
        ("seed", not -(2**63) <= (form.seed or 0) < 2**63, f"{form.seed} has over 64 bits"),
        ("stop", any(s == "" for s in _stops(form)), "an empty string would stop at once"),
        ("stop", not all(map(_is_stop, _stops(form))), "a token id is between 0 and 2**31 - 1"),
    )
    for field, is_wrong, reason in faults:
        if is_wrong:
            raise InvalidSampling(field, reason)


def _stops(form: wire.Sampling) -> list[str | int]:
    return [form.stop] if isinstance(form.stop, str) else list(form.stop or [])


def _is_top_k(top_k: int) -> bool:
    return top_k == -1 or 1 <= top_k < 2**31


def _is_stop(stop: str | int) -> bool:
    return isinstance(stop, str) or 0 <= stop < 2**31


def engine_request(form: wire.Sampling, target: Target, account_id: str) -> SampleRequest:
    """The wire's stop rule: None is the model's own end; named stops add to it; [] is nothing."""
    stops = _stops(form)
    ids = tuple(stop for stop in stops if isinstance(stop, int))
    return SampleRequest(
        base=BaseRef.of(target.base_name, target.base_digest, target.base_path),
        weights=target.weights,
        prompt=form.prompt.array(),
        max_tokens=form.max_tokens,
        n=form.n,
        temperature=form.temperature,
        top_k=form.top_k,
        top_p=form.top_p,
        seed=form.seed,
        stop_ids=() if form.stop == [] else (*ids, *target.end_ids),
        stop_strings=tuple(stop for stop in stops if isinstance(stop, str)),
        prompt_logprobs=form.prompt_logprobs,
        deterministic=form.deterministic,
        owner=account_id,
    )


async def resolve(db: AsyncSession, actor: Actor, form: wire.Sampling) -> Target:
    """Find the weights that a request names."""
    named = {"model": form.model, "session": form.session, "source": form.source}
    named["weights"] = form.weights
    given = [field for field, value in named.items() if value is not None]
    if len(given) != 1:
        raise InvalidSampling(
            "model, session, source or weights",
            f"exactly one is needed, {' and '.join(given) or 'none'} given",
        )
    if form.model is not None:
        return _target("base", await models.require_base_model(db, form.model))
    if form.session is not None:
        return await session_target(db, actor, form.session)
    if form.source is not None:
        return await version_target(db, actor, parse_ref(form.source))
    assert form.weights is not None
    return await _weights_target(db, actor, form.weights)


async def session_target(db: AsyncSession, actor: Actor, name_or_id: str) -> Target:
    session = await lifecycle.require_session(db, actor, name_or_id)
    session.require_open()
    base = await models.require_base_model(db, session.base_model)
    return _target(
        "session",
        base,
        weights=session.id,
        session_id=session.id,
        active_at=session.last_active_at,
    )


async def version_target(db: AsyncSession, actor: Actor, ref: Ref) -> Target:
    package = await packages.require_live(db, actor, ref)
    package.require_adapter()
    base = await models.require_base_model(db, package.base_model)
    if base.digest != package.base_digest:
        raise InvalidSampling(
            "source",
            f"{ref} was trained on {package.base_model} with digest {package.base_digest}; "
            f"{base.digest} is registered now",
        )
    files = [(f.path, f.size, f.sha256) for f in await packages.files(db, package)]
    return _target(
        "version",
        base,
        weights=package.id,
        session_id=package.session_id,
        prefix=package.prefix,
        files=files,
    )


async def _weights_target(db: AsyncSession, actor: Actor, weights_id: str) -> Target:
    weights = await SamplingRepository(db, actor.account_id).weights(weights_id)
    if weights is None:
        raise WeightsNotFound(weights_id)
    session = await lifecycle.require_session(db, actor, weights.session_id)
    base = await models.require_base_model(db, session.base_model)
    return _target(
        "sampler",
        base,
        weights=weights.id,
        session_id=session.id,
        prefix=weights.prefix,
        files=[(f["path"], f["size"], f["sha256"]) for f in weights.files],
        active_at=session.last_active_at,
    )


def _target(
    kind: str,
    base: BaseModel,
    *,
    weights: str | None = None,
    session_id: str | None = None,
    prefix: str = "",
    files: list[tuple[str, int, str]] | None = None,
    active_at: datetime | None = None,
) -> Target:
    return Target(
        kind=kind,
        base_name=base.name,
        base_digest=base.digest,
        base_path=base.path,
        end_ids=list(base.end_ids),
        weights=weights,
        session_id=session_id,
        prefix=prefix,
        files=files or [],
        active_at=active_at,
    )


async def accept(
    db: AsyncSession, actor: Actor, form: wire.Sampling, target: Target
) -> SamplingRequest:
    """A new row, or the row of the same token."""
    body_hash = sha256(wire.pack(form)).hexdigest()
    known = SamplingRequest(
        id=new_id("smp"),
        account_id=actor.account_id,
        client_token=form.token,
        body_hash=body_hash,
        session_id=target.session_id,
        model=target.base_name,
    )
    try:
        async with db.begin_nested():
            db.add(known)
    except IntegrityError:
        found = await SamplingRepository(db, actor.account_id).by_token(form.token)
        if found is None:
            raise
        known = found
    if known.body_hash != body_hash:
        raise TokenReused(form.token, known.id)
    if target.session_id is not None and target.active_at is not None:
        await lifecycle.is_sampled(db, actor, target.session_id, active_at=target.active_at)
    return known


async def complete(
    db: AsyncSession, request: SamplingRequest, samples: wire.Samples, *, is_cut: bool = False
) -> None:
    """Keep the answer and meter it, together. A cut stream is metered for what was sent."""
    request.status = SamplingStatus.failed if is_cut else SamplingStatus.completed
    if is_cut:
        request.error = {"kind": "unavailable", "message": "the stream was cut"}
    else:
        request.result = wire.pack(samples)
    request.completed_at = now()
    await usage.record(
        db,
        account_id=request.account_id,
        operation_id=request.id,
        model=request.model,
        counts={
            Category.prefill: samples.prompt_tokens - samples.cached_tokens,
            Category.cached_prefill: samples.cached_tokens,
            Category.sample: samples.sampled_tokens,
        },
        session_id=request.session_id,
    )


def fail(request: SamplingRequest, failure: wire.Failure) -> None:
    request.status = SamplingStatus.failed
    request.error = {"kind": failure.kind, "message": failure.message}
    request.completed_at = now()

"""Questions to the registry side of the service: models, versions, merges, deployments, usage."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from session.client.connection import Connection
from session.client.errors import DeploymentFailed, NotFoundError, OperationFailed
from session.client.records import (
    AliasInfo,
    BaseModelInfo,
    DeploymentInfo,
    GroupInfo,
    MergeInfo,
    Metric,
    Page,
    SessionInfo,
    Usage,
    Verification,
    VersionInfo,
)
from session.client.sampling import Source
from session.client.sessions import session_path
from session.client.tokenizer import model_path
from session.client.values import version_place

T = TypeVar("T")

_PAGE = 200
_LOOK_AGAIN_S = 0.5


async def every(
    connection: Connection,
    path: str,
    form: type[Page[T]],
    params: Mapping[str, str | None] | None = None,
) -> list[T]:
    """All pages of a list."""
    found: list[T] = []
    cursor: str | None = None
    while True:
        query = {**(params or {}), "limit": _PAGE, "cursor": cursor}
        page = await connection.get(path, form, query)
        found += page.data
        cursor = page.next_cursor
        if cursor is None:
            return found


def group_path(group: str) -> str:
    return f"/v1/groups/{quote(group, safe='')}"


def version_path(ref: str) -> str:
    group, place = version_place(ref)
    return f"{group_path(group)}/versions/{quote(place, safe='')}"


async def version(connection: Connection, ref: str) -> VersionInfo:
    return await connection.get(version_path(ref), VersionInfo)


async def base_of(connection: Connection, source: Source) -> str | None:
    """The base model behind a source, which must exist. Sampler weights do not tell theirs."""
    if source.model:
        return (await connection.get(model_path(source.model), BaseModelInfo)).name
    if source.source:
        return (await version(connection, source.source)).base_model
    if source.session:
        return (await connection.get(session_path(source.session), SessionInfo)).base_model
    return None


async def used(connection: Connection, session: str | None) -> Usage:
    """The ledger knows sessions by id alone."""
    if session is not None:
        session = (await connection.get(session_path(session), SessionInfo)).id
    return await connection.get("/v1/usage/totals", Usage, {"session": session})


async def decided(connection: Connection, ref: str, approval: str, why: str) -> VersionInfo:
    found = await version(connection, ref)
    path = f"{version_path(found.ref)}/approval"
    body = {"approval": approval, "why": why}
    return await connection.change("PUT", path, body, VersionInfo, revision=found.revision)


async def group_edited(connection: Connection, group: str, changes: Mapping[str, Any]) -> GroupInfo:
    path = group_path(group)
    found = await connection.get(path, GroupInfo)
    return await connection.change("PATCH", path, changes, GroupInfo, revision=found.revision)


async def logged(
    connection: Connection, ref: str, numbers: Mapping[str, float], step: int | None
) -> None:
    """An alias is looked up first: numbers belong to one version."""
    found = await version(connection, ref)
    body = {"metrics": dict(numbers), "step": step}
    await connection.post(f"{version_path(found.ref)}/metrics", body, Page[Metric])


async def edited(connection: Connection, ref: str, changes: Mapping[str, Any]) -> VersionInfo:
    found = await version(connection, ref)
    path = version_path(found.ref)
    return await connection.change("PATCH", path, changes, VersionInfo, revision=found.revision)


async def deleted(connection: Connection, ref: str, why: str) -> VersionInfo:
    found = await version(connection, ref)
    path = version_path(found.ref)
    query = {"why": why}
    return await connection.change(
        "DELETE", path, None, VersionInfo, revision=found.revision, params=query
    )


async def restored(connection: Connection, ref: str, why: str) -> VersionInfo:
    found = await version(connection, ref)
    path = f"{version_path(found.ref)}/restore"
    query = {"why": why}
    return await connection.change(
        "POST", path, None, VersionInfo, revision=found.revision, params=query
    )


async def purged(connection: Connection, ref: str) -> VersionInfo:
    found = await version(connection, ref)
    path = f"{version_path(found.ref)}/purge"
    return await connection.change("POST", path, None, VersionInfo, revision=found.revision)


async def verified(connection: Connection, ref: str) -> Verification:
    return await connection.post_long(f"{version_path(ref)}/verify", Verification)


async def pointed(connection: Connection, alias: str, ref: str, why: str) -> AliasInfo:
    target = await version(connection, ref)
    path = f"{group_path(target.group)}/aliases/{quote(alias, safe='')}"
    try:
        revision: int | None = (await connection.get(path, AliasInfo)).revision
    except NotFoundError:
        revision = None
    body = {"version": target.version, "why": why}
    return await connection.change("PUT", path, body, AliasInfo, revision=revision)


async def merged(connection: Connection, ref: str) -> VersionInfo:
    merge = await connection.post(f"{version_path(ref)}/merge", {}, MergeInfo)
    while merge.status in ("pending", "running"):
        merge = await connection.outcome_json(f"/v1/merges/{merge.id}", MergeInfo)
    if merge.status != "completed" or merge.version is None:
        raise OperationFailed(merge.id, "merge", merge.error or f"the merge is {merge.status}")
    return await version(connection, merge.version)


async def promoted(connection: Connection, ref: str, name: str) -> DeploymentInfo:
    path = _deployment_path(name)
    if ":" in ref:
        ref = (await version(connection, ref)).ref  # an alias may move while we wait
    found = await connection.post(f"{path}/promote", {"version": ref}, DeploymentInfo)
    found = await _decided(connection, path, found)
    if found.version != ref:
        raise DeploymentFailed(name, f"{found.version} has the traffic, not {ref}")
    return found


async def rolled_back(connection: Connection, name: str) -> DeploymentInfo:
    path = _deployment_path(name)
    found = await connection.post(f"{path}/rollback", {}, DeploymentInfo)
    return await _decided(connection, path, found)


def _deployment_path(name: str) -> str:
    return f"/v1/deployments/{quote(name, safe='')}"


async def _decided(connection: Connection, path: str, found: DeploymentInfo) -> DeploymentInfo:
    """Wait until the pending version has the traffic or has failed."""
    while found.status == "starting" or found.pending:
        if found.pending and found.pending.status == "failed":
            reason = found.pending.error or "it did not start"
            raise DeploymentFailed(found.name, f"{found.pending.version}: {reason}")
        await asyncio.sleep(_LOOK_AGAIN_S)
        found = await connection.get(path, DeploymentInfo)
    if found.status != "active":
        raise DeploymentFailed(found.name, f"it is {found.status}")
    return found

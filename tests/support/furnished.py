"""A hosted service whose first account has one of everything that a route can name.

It is to be allowed webhooks on private addresses, where nothing listens.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy import select

from registry.access.actor import Actor, Role
from registry.access.model import Account
from registry.artifacts.manifest import FileEntry
from registry.deployments import service as deployments
from registry.packages.model import PackageKind
from registry.packages.ref import PackageRef
from support.hosted import Hosted
from support.packages import a_version

GROUP, SESSION, DEPLOYMENT, ALIAS = "facts", "first", "workshop", "prod"


@dataclass(frozen=True)
class Names:
    """What an account calls what it may name itself."""

    account: str = "default"
    group: str = GROUP
    session: str = SESSION
    deployment: str = DEPLOYMENT
    alias: str = ALIAS


DEFAULTS = Names()
BYTES = b'{"r": 4}'
PATH = "checkpoints/hf/adapter_config.json"


SETTINGS: Mapping[str, Any] = {"webhooks": {"allow_private": True}}


async def furnish(
    service: Hosted, names: Names = DEFAULTS, headers: dict[str, str] | None = None
) -> dict[str, str]:
    """Versions 1 (state) and 2 (adapter) of its group and all that may go with them; what each
    parameter of a path is called for the account, for which `headers` speak."""
    group = names.group
    async with service.client(headers) as client:
        operation = await _trained(client, names)
        made = await client.put(
            f"/v1/groups/{group}/aliases/{names.alias}",
            json={"version": 1},
            headers={"If-None-Match": "*"},
        )
        assert made.status_code == 200, made.text
        merge = (await client.post(f"/v1/groups/{group}/versions/2/merge")).json()
        upload = (await client.post(f"/v1/groups/{group}/uploads", json=an_upload())).json()
        policy = await client.put(f"/v1/groups/{group}/retention", json={"keep_last": 100})
        assert policy.status_code == 200, policy.text
        hook = (await client.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/"})).json()
        probe = (await client.post(f"/v1/webhooks/{hook['id']}/test")).json()
    return {
        **{"group": group, "version": "1", "alias": names.alias, "path": "state/state.json"},
        **{"operation_id": operation, "merge_id": merge["id"], "upload": upload["id"]},
        **{"webhook": hook["id"], "delivery": probe["id"]},
        **{"model": names.deployment, "number": "1"},
    }


def an_upload() -> dict[str, Any]:
    """Of one file, none of whose parts ever come."""
    sha256 = hashlib.sha256(BYTES).hexdigest()
    file = {"path": PATH, "size": len(BYTES), "sha256": sha256}
    return {"token": "u1", "kind": "adapter", "base_model": "tiny", "files": [file]}


async def _trained(client: httpx.AsyncClient, names: Names) -> str:
    about = {"name": names.session, "group": names.group}
    session = {"base_model": "tiny", "lora": {"rank": 4}, **about}
    assert (await client.post("/v1/sessions", json=session)).status_code == 201
    for number, kind in enumerate(("state", "adapter"), start=1):
        wish = {"number": number, "token": f"t{number}", "body": {"type": "save", "kind": kind}}
        sent = await client.post(f"/v1/sessions/{names.session}/operations", json=wish)
        done = await client.get(f"/v1/operations/{sent.json()['id']}?wait=20")
        assert done.json()["result"]["version"] == f"{names.group}@{number}", done.text
    return str(done.json()["id"])


async def promote(service: Hosted, names: Names = DEFAULTS) -> None:
    """Version 3 (merged), in a deployment that goes on starting: nobody carries it out here."""
    async with service.database.begin() as db:
        owner = (await db.scalars(select(Account).where(Account.name == names.account))).one()
        actor = Actor(owner.id, Role.member)
        entry = FileEntry(PATH, len(BYTES), hashlib.sha256(BYTES).hexdigest())
        full = FileEntry("checkpoints/hf_merged/config.json", entry.size, entry.sha256)
        package = await a_version(db, actor, names.group, PackageKind.merged, files=[entry, full])
        ref = PackageRef(names.group, package.version)
        await deployments.promote(db, actor, name=names.deployment, ref=ref)
    for file in (entry, full):
        await service.store.put_bytes(package.prefix + file.path, BYTES)


async def until_quiet(
    service: Hosted, merge_id: str, headers: dict[str, str] | None = None
) -> None:
    """Nothing goes on any more that would change a row by itself."""
    async with service.client(headers) as client:
        asked: Mapping[str, Any] = {"status": "pending"}
        while asked["status"] in ("pending", "running"):
            asked = (await client.get(f"/v1/merges/{merge_id}?wait=20")).json()

"""The way into the service: sessions, samplers, and the registry of versions."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from session.client import checks, differences, registry
from session.client.config import from_environment
from session.client.connection import Connection
from session.client.errors import ConfigurationError, InvalidInput
from session.client.future import APIFuture
from session.client.pull import pulled
from session.client.push import Progress, Wish, pushed, silent
from session.client.records import (
    AliasInfo,
    BaseModelInfo,
    DeploymentInfo,
    Difference,
    GroupInfo,
    HoldInfo,
    Lineage,
    Metric,
    Move,
    Page,
    SessionInfo,
    Usage,
    Verification,
    VersionInfo,
    WeightChange,
)
from session.client.sampling import SamplingClient, Source
from session.client.sessions import attached, opened, session_path
from session.client.training import TrainingClient
from session.client.values import version_place

T = TypeVar("T")


class ServiceClient:
    """`timeout` is how many seconds calls go on trying while the service does not answer.

    What is not given is read from MODELYARD_URL, MODELYARD_API_KEY, MODELYARD_GROUP,
    MODELYARD_TIMEOUT, and then from $MODELYARD_HOME/credentials.

    Closing it, the end of its `with` block and the end of the script wait for every call that has
    no result yet; a call that failed and was not looked at is then logged. Leaving by an exception
    does not wait.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        group: str | None = None,
        timeout: float | None = None,
    ) -> None:
        config = from_environment(url=url, api_key=api_key, group=group, timeout=timeout)
        self._group = config.group
        self._connection = Connection(config)
        self._run = self._connection.background.run

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        alpha: float | None = None,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        targets: Sequence[str] | None = None,
        group: str | None = None,
        name: str | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> TrainingClient:
        """A session with a fresh adapter; waits until it runs.

        `alpha` None leaves it to the service (32). `targets` names layers and overrides the three
        `train_` switches.
        """
        if checks.whole("rank", rank) < 1:
            raise InvalidInput(f"rank must be at least 1, not {rank}")
        lora = {
            "rank": int(rank),
            "alpha": None if alpha is None else checks.number("alpha", alpha),
            "seed": None if seed is None else checks.whole("seed", seed),
            "targets": checks.names("targets", targets),
            "train_mlp": bool(train_mlp),
            "train_attn": bool(train_attn),
            "train_unembed": bool(train_unembed),
        }
        request = {"base_model": checks.text("base_model", base_model), "lora": _given(lora)}
        return self._open(request, group, name, user_metadata)

    def create_training_client_from_state(
        self,
        ref: str,
        *,
        group: str | None = None,
        name: str | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> TrainingClient:
        """A session from a version's weights, with a fresh optimizer.

        Base model, rank, alpha and targets are the version's.
        """
        return self._resume(ref, False, group, name, user_metadata)

    def create_training_client_from_state_with_optimizer(
        self,
        ref: str,
        *,
        group: str | None = None,
        name: str | None = None,
        user_metadata: Mapping[str, str] | None = None,
    ) -> TrainingClient:
        """Go on exactly where a version of kind `state` was saved."""
        return self._resume(ref, True, group, name, user_metadata)

    def get_training_client(self, session: str, group: str | None = None) -> TrainingClient:
        """Take up a running session, by id or name. Only one client at a time may drive it.

        A gradient that an interrupted script has left is applied by the next `optim_step`: call
        `clear_gradient()` first.
        """
        group = checks.optional_text("group", group)
        info = self._run(attached(self._connection, checks.text("session", session)))
        return TrainingClient(self._connection, info, group or info.group or self._group)

    def create_sampling_client(
        self,
        base_model: str | None = None,
        version: str | None = None,
        session: str | None = None,
        weights: str | None = None,
    ) -> SamplingClient:
        """Exactly one source: a base model, GROUP@VERSION, a session's current weights, or
        sampler weights."""
        if sum(source is not None for source in (base_model, version, session, weights)) != 1:
            raise InvalidInput("name exactly one of base_model, version, session and weights")
        source = Source(
            model=checks.optional_text("base_model", base_model),
            session=checks.optional_text("session", session),
            source=checks.optional_text("version", version),
            weights=checks.optional_text("weights", weights),
        )
        if source.source is not None:
            version_place(source.source)
        base = self._run(registry.base_of(self._connection, source))
        return SamplingClient(self._connection, source, base)

    def list_base_models(self) -> list[BaseModelInfo]:
        return self._run(registry.every(self._connection, "/v1/models", Page[BaseModelInfo]))

    def list_sessions(self, status: str | None = None) -> list[SessionInfo]:
        params = {"status": checks.optional_text("status", status)}
        return self._run(
            registry.every(self._connection, "/v1/sessions", Page[SessionInfo], params)
        )

    def delete_session(self, session: str) -> None:
        """Of one that has ended, the operations with their results and the sampler weights go;
        what it registered stays. Takes a name or an id."""
        path = session_path(checks.text("session", session))
        self._run(self._connection.delete(path))

    def list_groups(self) -> list[GroupInfo]:
        return self._run(registry.every(self._connection, "/v1/groups", Page[GroupInfo]))

    def list_versions(
        self, group: str | None = None, kind: str | None = None, **filters: str | None
    ) -> list[VersionInfo]:
        """Newest first. `kind` is `state`, `adapter` or `merged`; `stage`, `approval`, `alias`,
        `tag`, `text`, `session`, `created_after` and `created_before` narrow the list further."""
        path = f"{registry.group_path(self._named_group(group))}/versions"
        params = {"kind": checks.optional_text("kind", kind), **filters}
        return self._run(registry.every(self._connection, path, Page[VersionInfo], params))

    def latest_version(self, group: str | None = None, kind: str | None = None) -> VersionInfo:
        path = f"{registry.group_path(self._named_group(group))}/latest"
        return self._run(self._connection.get(path, VersionInfo, {"kind": kind}))

    def edit_version(self, ref: str, **changes: Any) -> VersionInfo:
        """Change `description`, `tags`, `stage` or `expires_at`; what is not named stays."""
        ends = changes.get("expires_at")
        if isinstance(ends, datetime):
            changes["expires_at"] = ends.astimezone(UTC).isoformat()
        return self._run(registry.edited(self._connection, ref, changes))

    def edit_group(self, group: str | None = None, **changes: Any) -> GroupInfo:
        """Change `description` or `require_approval`; the latter takes an admin's token."""
        return self._run(registry.group_edited(self._connection, self._named_group(group), changes))

    def log_metrics(self, ref: str, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add numbers to a version; without a step they are of its own, as an evaluation is."""
        version_place(ref)
        return self._run(registry.logged(self._connection, ref, metrics, step))

    def list_metrics(self, ref: str, name: str | None = None) -> list[Metric]:
        """What was logged since the save, in that order."""
        path = f"{registry.version_path(ref)}/metrics"
        return self._run(registry.every(self._connection, path, Page[Metric], {"name": name}))

    def get_version(self, ref: str) -> VersionInfo:
        version_place(ref)
        return self._run(registry.version(self._connection, ref))

    def delete_version(self, ref: str, why: str = "") -> VersionInfo:
        """It can be restored until `purge_at`. ConflictError names whatever holds it."""
        return self._run(registry.deleted(self._connection, ref, why))

    def restore_version(self, ref: str, why: str = "") -> VersionInfo:
        """Bring a deleted version back, if its files are not purged yet."""
        return self._run(registry.restored(self._connection, ref, why))

    def purge_version(self, ref: str) -> VersionInfo:
        """Remove the files of a deleted version now, and for good. Takes an admin's token."""
        return self._run(registry.purged(self._connection, ref))

    def hold_version(self, ref: str, why: str = "") -> HoldInfo:
        """Keep a version from being deleted, until you release it."""
        path = f"{registry.version_path(self.get_version(ref).ref)}/hold"
        return self._run(self._connection.put_json(path, {"why": why}, HoldInfo))

    def release_version(self, ref: str) -> None:
        """End your hold on a version."""
        path = f"{registry.version_path(self.get_version(ref).ref)}/hold"
        self._run(self._connection.delete(path))

    def list_holds(self, ref: str) -> list[HoldInfo]:
        """What keeps a version from being deleted."""
        path = f"{registry.version_path(ref)}/holds"
        return self._run(self._connection.get(path, Page[HoldInfo])).data

    def approve(self, ref: str, why: str = "") -> VersionInfo:
        """Fails with PreconditionFailedError where somebody changes the version meanwhile."""
        return self._run(registry.decided(self._connection, ref, "approved", why))

    def reject(self, ref: str, why: str = "") -> VersionInfo:
        """What is rejected is not promoted. It can be approved later."""
        return self._run(registry.decided(self._connection, ref, "rejected", why))

    def set_alias(self, alias: str, ref: str, why: str = "") -> AliasInfo:
        """Let an alias of the version's group point at it, wherever it points now."""
        return self._run(registry.pointed(self._connection, alias, ref, why))

    def list_aliases(self, group: str | None = None) -> list[AliasInfo]:
        path = f"{registry.group_path(self._named_group(group))}/aliases"
        return self._run(registry.every(self._connection, path, Page[AliasInfo]))

    def history(
        self, group: str | None = None, alias: str | None = None, at: datetime | None = None
    ) -> list[Move]:
        """Every move of an alias, approval or stage, newest first; with `at` those until then."""
        path = f"{registry.group_path(self._named_group(group))}/history"
        params = {"alias": alias, "at": at.astimezone(UTC).isoformat() if at else None}
        return self._run(registry.every(self._connection, path, Page[Move], params))

    def lineage(self, ref: str) -> Lineage:
        """What a version was made from, and what was made from it."""
        return self._run(self._connection.get(f"{registry.version_path(ref)}/lineage", Lineage))

    def diff(self, ref: str, against: str) -> Difference:
        """What is different in a version from another one."""
        version_place(against)
        return self._run(differences.difference(self._connection, ref, against))

    def weight_change(self, ref: str, against: str) -> APIFuture[WeightChange]:
        """How far each tensor moved from `against`: the service reads the weights of both."""
        version_place(ref)
        version_place(against)
        return self._connection.background.start(
            differences.weight_change(self._connection, ref, against), f"comparison of {ref}"
        )

    def verify(self, ref: str) -> APIFuture[Verification]:
        """Have the service read every byte of a version again; says which files are wrong."""
        version_place(ref)
        return self._connection.background.start(
            registry.verified(self._connection, ref), f"verification of {ref}"
        )

    def push(
        self,
        directory: str | Path,
        group: str | None = None,
        *,
        base_model: str | None = None,
        kind: str | None = None,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        parent: str | None = None,
        progress: Progress = silent,
    ) -> APIFuture[VersionInfo]:
        """Make a version of a PEFT adapter, a merged Hugging Face model, or what `pull` wrote.

        Pushed again, the same directory goes on where it was, and is one version. `base_model`
        names the registered model it fits, where an adapter's own words for it are others.
        """
        wish = Wish(
            directory=Path(directory),
            group=self._named_group(group),
            base_model=checks.optional_text("base_model", base_model),
            kind=checks.optional_text("kind", kind),
            description=checks.text("description", description),
            metadata=checks.texts("metadata", metadata),
            parent=checks.optional_text("parent", parent),
        )
        return self._connection.background.start(
            pushed(self._connection, wish, progress), f"push of {directory}"
        )

    def pull(
        self, ref: str, directory: str | Path, *, progress: Progress = silent
    ) -> APIFuture[Path]:
        """Write a version's files into a directory, each compared with its digest."""
        version_place(ref)
        return self._connection.background.start(
            pulled(self._connection, ref, Path(directory), progress), f"pull of {ref}"
        )

    def merge(self, ref: str) -> APIFuture[VersionInfo]:
        """Make a version of kind `merged` from a `state` or an `adapter`."""
        version_place(ref)
        return self._connection.background.start(
            registry.merged(self._connection, ref), f"merge of {ref}"
        )

    def promote(self, ref: str, name: str) -> APIFuture[DeploymentInfo]:
        """Serve a merged version as `name`. Done when it has the traffic."""
        version_place(ref)
        checks.text("name", name)
        return self._connection.background.start(
            registry.promoted(self._connection, ref, name), f"promote of {ref}"
        )

    def rollback(self, name: str) -> APIFuture[DeploymentInfo]:
        """Give the traffic back to what was served before."""
        checks.text("name", name)
        return self._connection.background.start(
            registry.rolled_back(self._connection, name), f"rollback of {name}"
        )

    def list_deployments(self) -> list[DeploymentInfo]:
        return self._run(registry.every(self._connection, "/v1/deployments", Page[DeploymentInfo]))

    def usage(self, session: str | None = None) -> Usage:
        """Tokens counted so far, in all or for one session, by id or name."""
        return self._run(registry.used(self._connection, checks.optional_text("session", session)))

    def give_up(self) -> None:
        """Every call that has no result yet: `close` neither waits for those nor speaks of them."""
        self._connection.background.calls.give_up()

    def close(self, wait: bool = True) -> None:
        """Without `wait`, calls that have no result yet end with ClientClosed.

        Waiting ends when no call has ended for `timeout` seconds.
        """
        self._connection.close(wait=wait)

    def __enter__(self) -> "ServiceClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(wait=kind is None)

    def _resume(
        self,
        ref: str,
        with_optimizer: bool,
        group: str | None,
        name: str | None,
        metadata: Mapping[str, str] | None,
    ) -> TrainingClient:
        found = self.get_version(ref)
        request = {
            "base_model": found.base_model,
            "from_version": found.ref,
            "with_optimizer": with_optimizer,
        }
        return self._open(request, group, name, metadata)

    def _open(
        self,
        request: Mapping[str, Any],
        group: str | None,
        name: str | None,
        metadata: Mapping[str, str] | None,
    ) -> TrainingClient:
        group = checks.optional_text("group", group) or self._group
        name = checks.optional_text("name", name)
        labels = {"group": group, "name": name, "metadata": checks.texts("user_metadata", metadata)}
        info = self._run(opened(self._connection, {**request, **_given(labels)}))
        return TrainingClient(self._connection, info, group)

    def _named_group(self, group: str | None) -> str:
        found = checks.optional_text("group", group) or self._group
        if not found:
            raise ConfigurationError(
                "no group: pass one, set MODELYARD_GROUP, or ServiceClient(group=...)"
            )
        return found


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}

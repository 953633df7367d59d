from collections.abc import Sequence
from datetime import datetime

from registry.kit.clock import stamp
from registry.kit.errors import Kind, ServiceError


class GroupNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, name: str) -> None:
        super().__init__(f"no group named {name!r}")


class GroupExists(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str) -> None:
        super().__init__(f"a group named {name!r} exists already")


class GroupMoved(ServiceError):
    kind = Kind.precondition_failed

    def __init__(self, name: str, *, expected: int, found: int) -> None:
        super().__init__(
            f"group {name!r} has changed since it was read: it is at revision {found}, "
            f"not {expected}; nothing was changed"
        )


class RuleIsForAdmins(ServiceError):
    kind = Kind.forbidden

    def __init__(self, name: str) -> None:
        super().__init__(
            f"require_approval: only a token with the role admin may set it for group {name!r}"
        )


class VersionRejected(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str) -> None:
        super().__init__(f"{ref} is rejected: approve it before it is promoted")


class ApprovalMissing(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str) -> None:
        group = ref.partition("@")[0]
        super().__init__(
            f"{ref} is pending, and the group {group} requires approval: approve it before it is "
            f"promoted: modelyard approve {ref}"
        )


class VersionNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, ref: object) -> None:
        super().__init__(f"no version {ref}")


class NoneLatest(ServiceError):
    kind = Kind.not_found

    def __init__(self, group: str, *, kind: str | None = None) -> None:
        super().__init__(f"group {group!r} has no version{f' of kind {kind}' if kind else ''} yet")


class FileNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, ref: str, path: str) -> None:
        super().__init__(f"version {ref} has no file {path!r}")


class InvalidRef(ServiceError):
    kind = Kind.invalid

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is not a version; write GROUP@VERSION, as in my-group@3, or GROUP:ALIAS"
        )


class InvalidPackage(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")


class AlreadyRegistered(ServiceError):
    kind = Kind.conflict

    def __init__(self, package_id: str) -> None:
        super().__init__(f"package {package_id} is registered already; a version never changes")


class PackageIsImmutable(ServiceError):
    kind = Kind.internal

    def __init__(self, fields: Sequence[str]) -> None:
        super().__init__(f"a registered version never changes, but {', '.join(fields)} would")


class AliasNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, group: str, alias: str) -> None:
        super().__init__(f"group {group!r} has no alias named {alias!r}")


class AliasMoved(ServiceError):
    kind = Kind.precondition_failed

    def __init__(self, ref: str, *, now: str) -> None:
        super().__init__(f"{ref} has moved since it was read: it is {now}; nothing was changed")


class AliasIsProtected(ServiceError):
    kind = Kind.forbidden

    def __init__(self, ref: str) -> None:
        super().__init__(f"{ref} is protected: only a token with the role admin may move it")


class VersionMoved(ServiceError):
    kind = Kind.precondition_failed

    def __init__(self, ref: str, *, expected: int, found: int) -> None:
        super().__init__(
            f"{ref} has changed since it was read: it is at revision {found}, not {expected}; "
            "nothing was changed"
        )


class VersionDeleted(ServiceError):
    kind = Kind.conflict

    def __init__(
        self, ref: str, *, at: datetime, purge_at: datetime | None, purged_at: datetime | None
    ) -> None:
        if purged_at is not None:
            rest = f"; its files were purged at {stamp(purged_at)}"
        elif purge_at is not None:
            rest = f"; it can be restored until it is purged, after {stamp(purge_at)}"
        else:
            rest = ""
        super().__init__(f"{ref} was deleted at {stamp(at)}{rest}")


class VersionHeld(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str, holders: Sequence[str]) -> None:
        super().__init__(f"{ref} is not deleted: it is held by {', '.join(holders)}")


class VersionNotDeleted(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str) -> None:
        super().__init__(f"{ref} is not deleted")


class PurgeBegun(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str, *, at: datetime) -> None:
        super().__init__(
            f"{ref} cannot be restored: its files have been on their way out since {stamp(at)}"
        )


class HoldNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, ref: str, holder: str) -> None:
        super().__init__(f"{ref} is not held by {holder!r}")


class GroupDeleted(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str, *, at: datetime) -> None:
        super().__init__(
            f"group {name!r} was deleted at {stamp(at)}; make it again to add versions to it"
        )


class GroupNotEmpty(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str, *, versions: int, shown: Sequence[int]) -> None:
        named = ", ".join(f"{name}@{version}" for version in shown)
        more = ", ..." if versions > len(shown) else ""
        super().__init__(
            f"group {name!r} is not deleted: {versions} of its versions are not purged: "
            f"{named}{more}"
        )


class InvalidPolicy(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")


class PolicyNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group!r} has no retention policy: it keeps everything")


class HistoryIsAppendOnly(ServiceError):
    kind = Kind.internal

    def __init__(self) -> None:
        super().__init__("what has happened stays in the history as it was written")


class NotResumable(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str, *, kind: str, missing: str) -> None:
        super().__init__(
            f"{ref} is not resumable: it is of kind {kind} and lacks {missing} (optimizer moments, "
            "step counter, random state); resume from a version of kind state"
        )


class NoAdapter(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str) -> None:
        group, _, version = ref.partition("@")
        super().__init__(
            f"{ref} has full weights and no adapter, so it is neither trained nor sampled on its "
            f"base; serve it: modelyard promote {group} {version} --as NAME"
        )


class NotPromotable(ServiceError):
    kind = Kind.conflict

    def __init__(self, ref: str, *, kind: str, missing: str) -> None:
        group, _, version = ref.partition("@")
        super().__init__(
            f"{ref} is not promotable: it is of kind {kind} and lacks {missing} (full weights); "
            f"make a merged version of it first: modelyard merge {group} {version}"
        )


class WriteCollected(ServiceError):
    kind = Kind.conflict

    def __init__(self, package_id: str) -> None:
        super().__init__(
            f"the files of {package_id} were given up as left over, so it cannot become a version; "
            "write them again"
        )

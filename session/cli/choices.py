"""What an option may be, known here so that a slip is told at once and Tab can offer it.

The service has the same names, beside its tables, which a client's command does not load.
"""

from enum import StrEnum


class Kind(StrEnum):
    state = "state"
    adapter = "adapter"
    merged = "merged"


class Stage(StrEnum):
    none = "none"
    staging = "staging"
    production = "production"
    archived = "archived"


class Approval(StrEnum):
    pending = "pending"
    approved = "approved"
    rejected = "rejected"


class SessionStatus(StrEnum):
    created = "created"
    running = "running"
    blocked = "blocked"
    stopping = "stopping"
    stopped = "stopped"
    expired = "expired"
    failed = "failed"


class DeliveryStatus(StrEnum):
    pending = "pending"
    delivered = "delivered"
    dead = "dead"


class EventType(StrEnum):
    """Those that a webhook may ask for."""

    version_registered = "version.registered"
    version_deleted = "version.deleted"
    version_restored = "version.restored"
    version_purged = "version.purged"
    version_approval = "version.approval"
    version_stage = "version.stage"
    alias_moved = "alias.moved"
    alias_removed = "alias.removed"
    deployment_activated = "deployment.activated"
    deployment_failed = "deployment.failed"
    deployment_rolled_back = "deployment.rolled_back"

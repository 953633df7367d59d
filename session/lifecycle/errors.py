"""What can be wrong with a training session, said in its own words."""

from registry.kit.errors import Kind, ServiceError


class SessionNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, name: str) -> None:
        super().__init__(f"no training session {name!r}")


class SessionEnded(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str, *, status: str, why: str | None = None) -> None:
        super().__init__(f"session {name!r} is {status}" + (f": {why}" if why else ""))


class SessionNotEnded(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str, *, status: str) -> None:
        super().__init__(f"session {name!r} is {status}; stop it first")


class TransitionRefused(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str, *, status: str, wanted: str) -> None:
        super().__init__(f"session {name!r} is {status} and cannot become {wanted}")


class SessionGone(ServiceError):
    """For a worker: somebody else has ended the session that it holds, or deleted it since."""

    kind = Kind.conflict

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} has ended")


class SessionNameTaken(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str) -> None:
        super().__init__(f"name: a session named {name!r} exists already")


class InvalidSession(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")


class OtherBase(ServiceError):
    kind = Kind.invalid

    def __init__(self, ref: str, *, base: str) -> None:
        super().__init__(
            f"{ref} was trained on {base} with another digest than this session's base model"
        )


class WorkerAway(ServiceError):
    """The worker is starting, restarting or gone; the same request may succeed a moment later."""

    kind = Kind.unavailable

    def __init__(self, reason: str) -> None:
        super().__init__(f"the worker is not reachable ({reason}); try again")

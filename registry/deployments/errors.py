from registry.kit.errors import Kind, ServiceError


class DeploymentNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, name: str) -> None:
        super().__init__(f"no deployment named {name!r}")


class InvalidDeploymentName(ServiceError):
    kind = Kind.invalid

    def __init__(self, name: str) -> None:
        super().__init__(
            f"name: {name!r} cannot name a deployment; use at most 63 letters, digits and hyphens, "
            "with a letter or digit at both ends"
        )


class NothingToRollBack(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has served no other version yet: there is nothing to go back to")


class DeploymentStarting(ServiceError):
    kind = Kind.unavailable

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is starting: try again in a few seconds")


class DeploymentFailed(ServiceError):
    kind = Kind.unavailable

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} serves no version; the last one did not start: {reason}")


class StartFailed(ServiceError):
    """A serving process that never became healthy. The message goes into the history."""

    kind = Kind.unavailable

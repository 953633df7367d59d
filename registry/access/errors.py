from registry.kit.errors import Kind, ServiceError


class Unauthenticated(ServiceError):
    kind = Kind.unauthenticated


class TokenMissing(Unauthenticated):
    def __init__(self) -> None:
        super().__init__("token missing: send the header `Authorization: Bearer TOKEN`")


class TokenUnknown(Unauthenticated):
    def __init__(self) -> None:
        super().__init__("token unknown: this service has none with that secret")


class TokenRevoked(Unauthenticated):
    def __init__(self) -> None:
        super().__init__("token revoked: ask an admin for a new one")


class TokenExpired(Unauthenticated):
    def __init__(self) -> None:
        super().__init__("token expired: ask an admin for a new one")


class RoleTooLow(ServiceError):
    kind = Kind.forbidden

    def __init__(self, *, needed: str, found: str) -> None:
        super().__init__(f"this needs a token with the role {needed}; yours has {found}")


class AccountNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, name_or_id: str) -> None:
        super().__init__(f"no account with the name or id {name_or_id!r}")


class AccountExists(ServiceError):
    kind = Kind.conflict

    def __init__(self, name: str) -> None:
        super().__init__(f"an account named {name!r} exists already")


class TokenNotFound(ServiceError):
    kind = Kind.not_found

    def __init__(self, token_id: str) -> None:
        super().__init__(f"no token with the id {token_id!r}")


class InvalidAccess(ServiceError):
    kind = Kind.invalid

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")

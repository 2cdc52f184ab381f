"""Roles: who may do what. Data, so that routes, accounts, keys and their documentation agree."""

from __future__ import annotations

from enum import StrEnum

from runqy.errors import UsageError


class Role(StrEnum):
    """What a key or an account is for."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    CLIENT = "client"
    WORKER = "worker"

    @property
    def includes(self) -> frozenset[Role]:
        """The roles whose calls this one may make, itself among them."""
        return _INCLUDES[self]


_INCLUDES: dict[Role, frozenset[Role]] = {
    Role.ADMIN: frozenset(Role),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.VIEWER, Role.CLIENT}),
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.CLIENT: frozenset({Role.CLIENT}),
    Role.WORKER: frozenset({Role.WORKER}),
}

ACCOUNT_ROLES = (Role.ADMIN, Role.OPERATOR, Role.VIEWER)
"""roles that a person can have"""


def parse_role(text: object, allowed: tuple[Role, ...] = tuple(Role)) -> Role:
    """The role of that name. Raises `UsageError` that lists the possible ones."""
    if isinstance(text, str) and text in allowed:
        return Role(text)
    raise UsageError(f"invalid role {text!r}: it is one of {', '.join(allowed)}")

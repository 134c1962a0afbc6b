"""Whose a bearer token is, and what its user may do: as the API server says, by TokenReview and SubjectAccessReview."""

from collections.abc import Mapping
from typing import Any, Final

from kube.client import Client
from kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS

REVIEW_SECONDS: Final = 5.0  # deadline of one call
MOST_TOKEN: Final = 16_384  # characters
_FIELDS: Final = ("groups", "uid", "extra")

User = Mapping[str, Any]  # `status.user` of a TokenReview


def bearer_token(header: str | None) -> str | None:
    """The token of an Authorization header; None where there is none, or what cannot be one."""
    scheme, _, token = (header or "").strip().partition(" ")
    token = token.strip()
    # What cannot be a token costs no call: the API server is not asked about it.
    good = scheme.lower() == "bearer" and token and len(token) <= MOST_TOKEN and token.isascii()
    return token if good else None


async def user_of(client: Client, token: str) -> User | None:
    """Whose token it is; None where the API server does not know it. Raises KubeError where it gives no answer."""
    made = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": {"token": token}}
    answer = await client.create(TOKEN_REVIEWS, made, timeout=REVIEW_SECONDS)
    status: Mapping[str, Any] = answer.get("status") or {}
    return (status.get("user") or {}) if status.get("authenticated") else None


async def is_allowed(client: Client, user: User, attributes: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether a user may do what ``resourceAttributes`` or ``nonResourceAttributes`` say.

    Raises KubeError where the API server gives no answer.
    """
    spec = {"user": str(user.get("username", "")), **attributes}
    # All that the TokenReview said goes on: roles are often bound to groups, such as those of service accounts.
    spec |= {field: user[field] for field in _FIELDS if user.get(field)}
    made = {"apiVersion": SUBJECT_ACCESS_REVIEWS.api_version, "kind": SUBJECT_ACCESS_REVIEWS.kind, "spec": spec}
    answer = await client.create(SUBJECT_ACCESS_REVIEWS, made, timeout=REVIEW_SECONDS)
    return bool((answer.get("status") or {}).get("allowed"))

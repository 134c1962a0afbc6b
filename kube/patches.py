"""Patch types, preconditions and read-modify-write under conflicts."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from kube.errors import Conflict, RetriesExhausted

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


class PatchType(StrEnum):
    """The content types that the API server takes for a PATCH."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"  # built-in kinds only: custom resources answer 415
    APPLY = "application/apply-patch+yaml"  # JSON is YAML


# A JSON Patch applied twice may add an element twice; the others set values.
IDEMPOTENT = frozenset({PatchType.MERGE, PatchType.STRATEGIC, PatchType.APPLY})


def escape(segment: str) -> str:
    """One segment of a JSON pointer (RFC 6901), e.g. an annotation key."""
    # The tilde goes first: the other way round the tilde of an escaped slash is escaped once more.
    return segment.replace("~", "~0").replace("/", "~1")


def guard(body: dict[str, Any], *, uid: str | None = None, resource_version: str | None = None) -> dict[str, Any]:
    """A merge or strategic patch that is refused with Conflict where uid or resourceVersion differ.

    ``body`` is not changed; the patch returned carries the preconditions in its metadata.
    """
    wanted = {"uid": uid, "resourceVersion": resource_version}
    metadata = {**body.get("metadata", {}), **{key: value for key, value in wanted.items() if value is not None}}
    return {**body, "metadata": metadata}


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]], *, attempts: int = 5) -> T:
    """Run ``attempt`` (read, decide, write) until it meets no Conflict; it must read afresh each time.

    No pause is made: the server answered, and what it has now is read next.

    Raises:
        RetriesExhausted: ``attempts`` conflicts in a row; the last Conflict is its cause.
    """
    for left in range(attempts - 1, -1, -1):
        try:
            return await attempt()
        except Conflict as conflict:
            if not left:
                raise RetriesExhausted(f"{attempts} conflicts in a row, the last: {conflict}") from conflict
    raise AssertionError("attempts must be positive")

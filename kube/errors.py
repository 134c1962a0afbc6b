"""Everything that can go wrong between us and the API server.

::

    KubeError
    ├── ConfigError                 kubeconfig, in-cluster files or credential plugin are unusable
    ├── ConnectionFailed            no connection, or it broke; whether the server acted is not known
    ├── KubeTimeout                 no answer by the call's deadline; whether the server acted is not known
    ├── BadAnswer                   an answer or a watch event is not what was asked for
    ├── AnswerTooLarge              an answer has more bytes than the caller takes
    ├── Fenced                      a write that was not sent: this process may not write (any more)
    ├── RetriesExhausted            an object kept changing under a read-modify-write
    └── ApiError                    the server answered, with a status >= 400
        ├── BadRequest              400
        ├── Unauthorized            401, after the credentials were refreshed once
        ├── Forbidden               403
        ├── NotFound                404
        ├── Conflict                409: the resourceVersion, uid or field manager is not the expected one
        │   └── AlreadyExists       409 with reason AlreadyExists
        ├── Gone                    410: the resourceVersion or continue token is too old
        ├── TooLarge                413
        ├── Invalid                 422
        ├── TooManyRequests         429: overloaded, or an eviction that a PodDisruptionBudget forbids
        └── ServerError             5xx

Messages carry verb, resource, namespace/name, the status reason and the server's own message.
"""
# ruff: noqa: N818 -- the names are the API's own reason words

from collections.abc import Mapping
from typing import Any

import msgspec


class KubeError(Exception):
    """Base of all errors of this package."""


class AnswerTooLarge(KubeError):
    """The answer has more bytes than are taken."""


class Fenced(KubeError):
    """Nothing was sent, as this process may not write any more."""


class ConfigError(KubeError):
    """The configuration or the credentials cannot be used; the message names the file or the field."""


class ConnectionFailed(KubeError):
    """The connection could not be made or broke before the whole answer was here."""


class KubeTimeout(KubeError, TimeoutError):
    """No whole answer came by the deadline of the call."""


class BadAnswer(KubeError):
    """An answer is not JSON of the type asked for, or a watch sent a line that is not a watch event."""


class RetriesExhausted(KubeError):
    """Every attempt of a read-modify-write met a conflict."""


class StatusCause(msgspec.Struct, frozen=True, gc=False):
    """One cause of a refused object."""

    field: str = ""
    message: str = ""
    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The machine-readable part of a Status."""

    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True, gc=False):
    """The ``Status`` object that the API server sends with an error."""

    status: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ApiError(KubeError):
    """The API server refused the call.

    Attributes:
        status: HTTP status.
        reason: the status reason (``NotFound``, ``Conflict``, ``Expired``, ...); may be empty.
        message: the API server's message.
        retry_after: seconds after which the server asks to try again, where it said so.
        request: verb, resource and namespace/name of the call.
        details: causes of a refused object, where the server named them.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        retry_after: float | None = None,
        *,
        request: str = "",
        details: StatusDetails | None = None,
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.request = request
        self.details = details
        super().__init__(status, reason, message)

    def __str__(self) -> str:
        where = f"{self.request}: " if self.request else ""
        reason = f" {self.reason}" if self.reason else ""
        return f"{where}{self.status}{reason}: {self.message or 'the API server gave no message'}"


class BadRequest(ApiError):
    """400."""


class Unauthorized(ApiError):
    """401, and refreshed credentials did not help."""


class Forbidden(ApiError):
    """403: RBAC or an admission policy."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: somebody else changed the object, or owns the field."""


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists."""


class Gone(ApiError):
    """410: history before this resourceVersion is compacted away."""


class TooLarge(ApiError):
    """413: the object is larger than the server takes."""


class Invalid(ApiError):
    """422: the object breaks its schema or a validation rule."""


class TooManyRequests(ApiError):
    """429."""


class ServerError(ApiError):
    """5xx."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    422: Invalid,
    429: TooManyRequests,
}
_decode_status = msgspec.json.Decoder(Status).decode


def api_error(status: int, body: bytes = b"", headers: Mapping[str, Any] | None = None, request: str = "") -> ApiError:
    """The exception for an answer with ``status``; the body may be a Status, text of a proxy, or nothing."""
    try:
        parsed = _decode_status(body)
    except msgspec.DecodeError:
        # A proxy's error page may be of any size, and messages end up in logs and conditions.
        parsed = Status(message=body[:300].decode(errors="replace").strip())
    # The HTTP date form exists too; the API server never sends it.
    header = (headers or {}).get("Retry-After")
    seconds = float(header) if header is not None and header.isascii() and header.isdigit() else None
    return from_status(parsed, code=status, retry_after=seconds, request=request)


def from_status(status: Status, *, code: int = 0, retry_after: float | None = None, request: str = "") -> ApiError:
    """The exception for a Status object; ``code`` (the HTTP status) wins over the one inside."""
    code = code or status.code or 500
    cls = _BY_STATUS.get(code, ServerError if code >= 500 else ApiError)
    # The API server sends both as 409; only the reason tells a create that lost from a write that was late.
    if cls is Conflict and status.reason == "AlreadyExists":
        cls = AlreadyExists
    return cls(code, status.reason, status.message, retry_after, request=request, details=status.details)

"""The API of a Prometheus, asked one question at a time.

Rules
- Each query has its deadline, and an answer its most bytes; it is not sent on to another place.
- What comes back is somebody else's: it is read as series of texts, and of anything else nothing but an error's text.
- The labels of an installation are put into each query, quoted.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Final

import msgspec

from kube.connection.lean_aiohttp import aiohttp

SECONDS: Final = 10.0  # for a query
MOST_BYTES: Final = 4 << 20
LONGEST: Final = 300  # characters of an error
OK: Final = 200


class PrometheusError(Exception):
    """There is no answer, and why, for a person."""


class TimeSeries(msgspec.Struct, frozen=True):
    """Values by time, and the labels that they have in common."""

    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: list[TimeSeries] = []


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data = _Data()
    error: str = ""


class PrometheusApi:
    """See the module. ``url``: of its API, without ``/api/v1``; ``labels``: that tell this cluster's series apart."""

    def __init__(self, session: aiohttp.ClientSession, url: str, labels: Mapping[str, str]) -> None:
        self._session = session
        self._url = url.rstrip("/") + "/api/v1/query_range"
        self._labels = dict(labels)

    def selector(self, *parts: str) -> str:
        """The selector of this cluster's series; ``parts``: what else is to be so, such as ``resource="cpu"``."""
        own = (f"{name}={json.dumps(value)}" for name, value in sorted(self._labels.items()))
        return f"{{{','.join((*parts, *own))}}}"

    async def series(self, query: str, start: int, end: int, step: int) -> list[TimeSeries]:
        """What a query gives from ``start`` to ``end``. Raises PrometheusError."""
        asked = {"query": query, "start": str(start), "end": str(end), "step": str(step), "timeout": f"{SECONDS:.0f}s"}
        try:
            async with (
                asyncio.timeout(SECONDS),
                # A redirect could make the page call a place inside of its network that nobody configured.
                self._session.get(self._url, params=asked, allow_redirects=False) as answer,
            ):
                # One byte more than may be: the check below tells a full answer from one that is too long.
                body = await answer.content.read(MOST_BYTES + 1)
                while not answer.content.at_eof() and len(body) <= MOST_BYTES:
                    body += await answer.content.read(MOST_BYTES + 1 - len(body))
        except TimeoutError as error:
            raise PrometheusError(f"Prometheus gives no answer within {SECONDS:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise PrometheusError(f"Prometheus cannot be reached: {_shorten_text(str(error))}") from error
        if len(body) > MOST_BYTES:
            raise PrometheusError("the answer of Prometheus is too long")
        status = answer.status
        try:
            found = msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PrometheusError(f"what answers (HTTP {status}) does not speak the API of Prometheus") from error
        if found.status != "success" or status != OK:
            raise PrometheusError(f"Prometheus answers {status}: {_shorten_text(found.error) or 'it does not say why'}")
        if found.data.result_type != "matrix":
            raise PrometheusError("Prometheus answers another question than was asked")
        return found.data.result


def _shorten_text(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"

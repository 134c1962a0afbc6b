"""Gets one file over HTTP: gives up quickly where nobody answers, goes on where a connection was cut, checks the sum.

Rules
- Who does not answer within `ANSWER_SECONDS` is not there. Once it answered, only `STALL_SECONDS` of silence end it.
- What arrived is kept beside the file, and the next attempt asks for the rest. A server that sends all of it again, or
  another version of it, is started with anew.
- A file with a wrong sum is deleted: it is neither used nor gone on with.
- A redirect leads to TLS or, from a plain address, anywhere; from TLS never to a plain address.
"""

import hashlib
import http.client
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from clock import SYSTEM, Clock

ANSWER_SECONDS: Final = 3.0
STALL_SECONDS: Final = 20.0
ATTEMPTS: Final = 5  # in a row that bring nothing
# Also with progress: a server that cuts after every few bytes would otherwise be asked for ever.
MOST_ATTEMPTS: Final = 50
# The largest release file is far below; a server that sends without end must not fill the disk.
MOST_BYTES: Final = 1 << 30
MOST_TEXT: Final = 1 << 20
BAR_SECONDS: Final = 0.2
LOG_SECONDS: Final = 10.0  # where nobody watches
_BLOCK: Final = 1 << 18
_BAR: Final = 20
_NO_RANGE: Final = 416

Progress = Callable[[str], None]


class NotFetched(Exception):  # noqa: N818
    """The file cannot be had; the text says why. ``away``: nobody answers there at all."""

    def __init__(self, message: str, *, away: bool = False) -> None:
        super().__init__(message)
        self.away = away


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, counts them, and none from TLS to a plain address."""

    hops = 0

    def redirect_request(  # noqa: PLR0917
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        # Otherwise whoever sits on the network could answer in the server's place.
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise NotFetched(f"{req.full_url} leads to {newurl}, which is not encrypted")
        self.hops += 1
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def text(url: str) -> str:
    """A small file as text. Raises NotFetched."""
    try:
        with _open(url, {}) as answer:
            # Never all of it: the address may lead to anything.
            return str(answer.read(MOST_TEXT).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        with error:
            raise NotFetched(f"{url}: HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NotFetched(f"{url}: {error}") from error


def file(url: str, part: Path, digest: str, *, what: str, progress: Progress, clock: Clock = SYSTEM) -> None:
    """Fill ``part`` with the file of this sum, from where an earlier attempt left off. Raises NotFetched."""
    bar = _Bar(what, progress, clock)
    silent = tries = 0
    while not _complete(url, part, bar):
        silent, tries = 0 if bar.has_progressed() else silent + 1, tries + 1
        if silent >= ATTEMPTS or tries >= MOST_ATTEMPTS:
            raise NotFetched(f"{url}: the connection was cut {tries} times, {silent} of them without anything new")
    with part.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != digest:
        part.unlink()
        raise NotFetched(f"{url}: its SHA-256 is {found}, expected {digest}: it was thrown away")


def _complete(url: str, part: Path, bar: "_Bar") -> bool:
    """One attempt; whether all of it is there now. Raises NotFetched where another one would be no better."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        with _open(url, headers) as answer:
            # A server may ignore the range, or begin elsewhere. Only an answer that begins where the file ends is
            # appended.
            begin = (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
            partial = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            rest = partial and begin.isdigit() and int(begin) == have
            if have and not rest and partial:
                part.unlink()
                return False
            length = answer.headers.get("Content-Length") or ""
            total = int(length) + (have if rest else 0) if length.isdigit() else None
            with part.open("ab" if rest else "wb") as stream:
                return _copy(answer, stream, have if rest else 0, total, bar)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == _NO_RANGE and have:
                part.unlink()  # it is longer than the file, or the file is another now
                return False
            raise NotFetched(f"{url}: HTTP {error.code} {error.reason}") from error
    except (http.client.HTTPException, OSError):
        return False  # cut: what arrived is kept


def _copy(answer: Any, stream: IO[bytes], done: int, total: int | None, bar: "_Bar") -> bool:
    while block := answer.read1(_BLOCK):
        try:
            stream.write(block)
        except OSError as error:
            raise NotFetched(f"{stream.name}: {error}") from error
        done += len(block)
        # While it arrives, because a length in the headers may be missing or wrong.
        if done > MOST_BYTES:
            raise NotFetched(f"it is larger than {MOST_BYTES >> 20} MiB")
        bar.show(done, total)
    # Without a length the end of the answer is all that tells. The sum finds out what is missing.
    return total is None or done >= total


def _open(url: str, headers: dict[str, str]) -> Any:
    """The answer's beginning. A name that nobody resolves hangs longer than any socket's timeout: a thread waits."""
    request = urllib.request.Request(url, headers={"User-Agent": "topogate", **headers})  # noqa: S310
    redirects = _Redirects()
    opener = urllib.request.build_opener(redirects)
    found: list[Any] = []

    def open_url() -> None:
        try:
            found.append(opener.open(request, timeout=ANSWER_SECONDS))
        except Exception as error:  # noqa: BLE001 - it is raised below
            found.append(error)

    # A daemon: a look-up that hangs must not keep the process from ending.
    thread = threading.Thread(target=open_url, daemon=True)
    thread.start()
    hops = -1
    while not found and hops < redirects.hops:  # who answers with a redirect has answered
        hops = redirects.hops
        thread.join(ANSWER_SECONDS + 0.2)
    if not found:
        raise NotFetched(f"{url}: no answer within {ANSWER_SECONDS:g} s", away=True)
    answer = found[0]
    if isinstance(answer, urllib.error.HTTPError | NotFetched):
        raise answer
    if isinstance(answer, Exception):
        reason = getattr(answer, "reason", answer)
        raise NotFetched(f"{url}: {reason}", away=True) from answer
    # From now on a server may be silent for longer.
    sock = getattr(getattr(answer.fp, "raw", None), "_sock", None)
    if sock is not None:
        sock.settimeout(STALL_SECONDS)
    return answer


class _Bar:
    """Tells how far it is, a few times a second; the text before the bracket stays the same."""

    def __init__(self, what: str, progress: Progress, clock: Clock) -> None:
        self._what = what
        self._progress = progress
        self._clock = clock
        self._began = clock.monotonic()
        self._told = 0.0
        self._pause = BAR_SECONDS if sys.stderr.isatty() else LOG_SECONDS
        self._done = self._seen = 0
        self._first: int | None = None

    def has_progressed(self) -> bool:
        """Whether anything arrived since this was asked last."""
        before, self._seen = self._seen, self._done
        return self._done > before

    def show(self, done: int, total: int | None) -> None:
        """So many bytes are there."""
        now, self._done = self._clock.monotonic(), done
        self._first = done if self._first is None else self._first
        if now - self._told < self._pause and done != total:
            return
        self._told = now
        speed = (done - self._first) / max(now - self._began, 0.001)
        if total:
            filled = _BAR * done // total
            told = f"[{'#' * filled}{'.' * (_BAR - filled)}] {_mib(done)} of {_mib(total)} MiB"
        else:
            told = f"{_mib(done)} MiB"
        self._progress(f"downloading {self._what} ({told}, {_mib(int(speed))} MiB/s)")


def _mib(amount: int) -> str:
    return f"{amount / (1 << 20):.1f}"

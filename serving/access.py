"""Whether the bearer of a token may read /metrics, as the API server says: TokenReview, then SubjectAccessReview.

Rules
- Who may is asked of the API server, and remembered for a minute, who may not for ten seconds. Where it cannot be
  asked, whoever could read in the last five minutes still can: an API server that is away takes nobody's eyes.
- Tokens are not kept, but their hashes.
- However many come with tokens that are none, the API server is asked a few times a second at most.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog

from clock.token_bucket import TokenBucket
from kube.client import Client
from kube.errors import KubeError
from serving.reviews import bearer_token, is_allowed, user_of

PATH, VERB = "/metrics", "get"
ALLOWED_SECONDS = 60.0
REFUSED_SECONDS = 10.0
STALE_SECONDS = 300.0
REVIEWS_PER_SECOND = 5.0
REVIEWS_AT_ONCE = 10  # how many may come in a burst
REMEMBERED = 256

log = structlog.get_logger()


class Verdict(NamedTuple):
    """An HTTP status and what is said with it."""

    status: int
    text: str


ALLOWED = Verdict(200, "")
NO_TOKEN = Verdict(401, "a bearer token is required: Authorization: Bearer TOKEN")
NOT_KNOWN = Verdict(401, "the API server does not know this token, or not any more")
TOO_MANY = Verdict(429, "too many tokens that are not known yet: try again in a second")


class _CachedVerdict(msgspec.Struct):
    verdict: Verdict
    at: float  # monotonic

    def fresh(self, now: float) -> bool:
        return now - self.at < (ALLOWED_SECONDS if self.verdict is ALLOWED else REFUSED_SECONDS)

    def usable(self, now: float) -> bool:
        """Whether it still counts where the API server cannot be asked."""
        return self.verdict is ALLOWED and now - self.at < STALE_SECONDS


Review = Callable[[str], Awaitable[Verdict]]  # of a token; raises KubeError where nobody could be asked


class Access:
    """Who may read the metrics of this component, by ``review``. ``clock`` is monotonic."""

    def __init__(self, review: Review, clock: Callable[[], float]) -> None:
        self._review = review
        self._clock = clock
        self._known: OrderedDict[bytes, _CachedVerdict] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Verdict]] = {}
        self._turns = TokenBucket(REVIEWS_AT_ONCE, REVIEWS_PER_SECOND, clock())

    async def check(self, header: str | None) -> Verdict:
        """The verdict on a request with this Authorization header. Never raises for a client's sake."""
        token = bearer_token(header)
        if token is None:
            return NO_TOKEN
        key, now = hashlib.sha256(token.encode()).digest(), self._clock()
        known = self._known.get(key)
        if known is not None and known.fresh(now):
            self._known.move_to_end(key)
            return known.verdict
        # Requests that come with a token that is being asked about wait for that answer, and take no turn.
        if (task := self._asking.get(key)) is None:
            # Made-up tokens use up the turns; a token that was allowed lately is then let in by its old verdict.
            if not self._turns.take_token(now):
                return known.verdict if known is not None and known.usable(now) else TOO_MANY
            task = self._asking[key] = asyncio.create_task(self._ask_server(key, token))
            # The callback outlives the request: a client that leaves
            # must not leave the token marked as being asked about.
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)  # a client that leaves takes nobody's answer

    async def _ask_server(self, key: bytes, token: str) -> Verdict:
        try:
            verdict = await self._review(token)
        except KubeError as error:
            known = self._known.get(key)
            log.warning("nobody could be asked who reads metrics", error=str(error))
            if known is not None and known.usable(self._clock()):
                return known.verdict
            return Verdict(503, "the API server cannot be asked whether this token may read metrics")
        self._known[key] = _CachedVerdict(verdict, self._clock())
        self._known.move_to_end(key)
        # Refusals are remembered too, and a client may send any number of tokens.
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return verdict


def by_api_server(client: Client) -> Review:
    """The reviews of the API server."""

    async def review(token: str) -> Verdict:
        user = await user_of(client, token)
        if user is None:
            return NOT_KNOWN
        if await is_allowed(client, user, {"nonResourceAttributes": {"path": PATH, "verb": VERB}}):
            return ALLOWED
        name = user.get("username", "")
        text = f"{name} may not {VERB} the non-resource URL {PATH}: bind it to ClusterRole topogate-metrics-reader"
        return Verdict(403, text)

    return review

"""Who a viewer is, and what he may see: as the API server says of his own token.

Rules
- A token is looked at by TokenReview, and what its user may list by SubjectAccessReview. Nothing is done with the token
  but that; of it, only a hash is kept.
- Nodes are his to see who may list nodes; queues, who may list cluster queues; what is in a namespace, who may list
  pods and workloads there; events there, who may list these too.
- What was found counts for a minute, of namespaces for five. Where the API server cannot be asked, nothing new is
  shown: what was found still counts for five minutes, so that a picture stays while it is away.
- Who comes with tokens that are none costs the API server a few calls a second at most, all of them together.
"""

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog

from clock.token_bucket import TokenBucket
from kube.client import Client
from kube.errors import KubeError
from kube.resources import CLUSTER_QUEUES, EVENTS, NODES, PODS, WORKLOADS, Resource
from serving.reviews import User, bearer_token, is_allowed, user_of
from web.sight import EVERYTHING, Sight

SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 10.0  # after which the API server is asked again where it gave no answer
STALE_SECONDS: Final = 300.0
NAMESPACE_SECONDS: Final = 300.0
REVIEWS_AT_ONCE: Final = 8
LOGINS_PER_SECOND: Final = 5.0
LOGINS_AT_ONCE: Final = 10
REMEMBERED: Final = 256  # viewers
# Two reviews a namespace for each log-in: more of them would take the API server's time for one viewer.
MOST_NAMESPACES: Final = 1000  # asked one by one; in a larger cluster rights in all namespaces count
_EVENTS: Final = Resource("", "v1", EVENTS.plural, EVENTS.kind)

log = structlog.get_logger()


class ViewerVerdict(NamedTuple):
    """Who it is and what he may see; or the HTTP status and text that he gets instead."""

    user: str = ""
    sight: Sight = Sight()
    status: int = 200
    text: str = ""


class Rights(Protocol):
    """Whoever says what a request with this Authorization header may see."""

    async def sight_of_viewer(self, header: str | None, namespaces: Collection[str]) -> ViewerVerdict:
        """``namespaces``: those in which there is something to see."""
        ...

    async def no_events(self, header: str | None, namespace: str) -> str:
        """Why somebody whom `sight_of_viewer` let in sees no events of a namespace; "" where he does."""
        ...


NO_TOKEN = ViewerVerdict(status=401, text="a token is needed")
NOT_KNOWN = ViewerVerdict(status=401, text="the API server does not know this token, or not any more")
TOO_MANY = ViewerVerdict(status=429, text="too many log-ins at once: try again in a moment")
NOBODY = ViewerVerdict(status=503, text="the API server cannot be asked who you are: try again in a moment")


class KeyRights:
    """One key that opens everything the process itself may read: for a person at his own machine."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    async def sight_of_viewer(self, header: str | None, namespaces: Collection[str]) -> ViewerVerdict:  # noqa: ARG002 - as `Rights` has it
        """Everything, for whoever has the key."""
        token = bearer_token(header)
        if token is None:
            return NO_TOKEN
        # The time of the comparison must not tell how many characters are right.
        same = hmac.compare_digest(token.encode(), self._key)
        return (
            ViewerVerdict("you", EVERYTHING)
            if same
            else ViewerVerdict(status=401, text="this is not the key of this process")
        )

    async def no_events(self, header: str | None, namespace: str) -> str:  # noqa: ARG002 - as `Rights` has it
        """Nothing forbids them."""
        return ""


class _CachedSight(msgspec.Struct):
    """What was found of one token. Times are monotonic."""

    seen: ViewerVerdict
    at: float
    tried: float = float("-inf")  # when it could not be asked last
    user: User = msgspec.field(default_factory=dict)
    namespaces: dict[str, tuple[bool, float]] = msgspec.field(default_factory=dict)
    events: dict[str, tuple[bool, float]] = msgspec.field(default_factory=dict)

    def is_fresh(self, now: float) -> bool:
        """Whether nobody needs to be asked."""
        # A refusal counts for less: a person who was just given a right tries again.
        if now - self.at < (SECONDS if self.seen.status == 200 else REFUSED_SECONDS):
            return True
        return self.stays(now) and now - self.tried < RETRY_SECONDS

    def stays(self, now: float) -> bool:
        """Whether it still counts where the API server gives no answer."""
        return self.seen.status == 200 and now - self.at < STALE_SECONDS

    def went_unanswered(self, now: float) -> None:
        """The API server gave no answer."""
        self.tried = now

    def learn(self, seen: ViewerVerdict) -> None:
        """All was asked."""
        self.seen = seen

    def remember(self, namespaces: Mapping[str, tuple[bool, float]]) -> None:
        """Which namespaces may be seen, and when that was asked."""
        self.namespaces = dict(namespaces)

    def remember_events(self, namespace: str, *, allowed: bool, at: float) -> None:
        """Whether events of a namespace may be seen."""
        if len(self.events) >= MOST_NAMESPACES:
            self.events.clear()
        self.events[namespace] = allowed, at


class ReviewedRights:
    """Those that the API server tells of. ``clock`` is monotonic."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[bytes, _CachedSight] = OrderedDict()
        self._strangers: OrderedDict[bytes, _CachedSight] = OrderedDict()  # tokens that are none: they forget no viewer
        self._asking: dict[bytes, asyncio.Task[ViewerVerdict]] = {}
        self._few = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._turns = TokenBucket(LOGINS_AT_ONCE, LOGINS_PER_SECOND, clock())

    async def sight_of_viewer(self, header: str | None, namespaces: Collection[str]) -> ViewerVerdict:
        """See `Rights`. Never raises for a client's sake."""
        token = bearer_token(header)
        if token is None:
            return NO_TOKEN
        key, now = hashlib.sha256(token.encode()).digest(), self._clock()
        known = self._known.get(key) or self._strangers.get(key)
        if known is not None and known.is_fresh(now):
            if known.seen.status == 200:
                self._known.move_to_end(key)
            return known.seen
        # A page opens several requests at once with the same token: they wait for one review.
        if (task := self._asking.get(key)) is None:
            # Only tokens that let nobody in pay, also where one is remembered: a flood of them must not lock out a
            # viewer who is let in already.
            if key not in self._known and not self._turns.take_token(now):
                return TOO_MANY
            task = self._asking[key] = asyncio.create_task(self._ask_server(key, token, tuple(namespaces)))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def no_events(self, header: str | None, namespace: str) -> str:
        """See `Rights`. Events are one thing under two groups, and who may list them by either may see them."""
        token = bearer_token(header)
        known = self._known.get(hashlib.sha256((token or "").encode()).digest())
        if known is None:
            return NOT_KNOWN.text
        allowed, at = known.events.get(namespace, (False, float("-inf")))
        if self._clock() - at > SECONDS:
            try:
                allowed = any([await self._may(known.user, one, namespace) for one in (_EVENTS, EVENTS)])
            except KubeError:
                return "the API server cannot be asked whether you may list events: try again in a moment"
            known.remember_events(namespace, allowed=allowed, at=self._clock())
        return "" if allowed else f"you may not list events in namespace {namespace}"

    async def _ask_server(self, key: bytes, token: str, namespaces: Collection[str]) -> ViewerVerdict:
        known = self._known.get(key)
        try:
            user = await user_of(self._client, token)
            if user is None:
                found = _CachedSight(NOT_KNOWN, self._clock())
            else:
                before = known.namespaces if known is not None else {}
                # With what is known of namespaces, which counts for longer: a renewal then costs five reviews, not two
                # a namespace.
                found = _CachedSight(NOT_KNOWN, self._clock(), user=user, namespaces=before)
                found.learn(ViewerVerdict(str(user.get("username", "")), await self._sight(found, namespaces)))
        except KubeError as error:
            log.warning("nobody could be asked what a viewer may see", error=str(error))
            if known is None or not known.stays(now := self._clock()):
                return NOBODY
            known.went_unanswered(now)
            return known.seen
        # A token may change sides: it expires, or a user is created.
        for table in (self._known, self._strangers):
            table.pop(key, None)
        table = self._known if found.seen.status == 200 else self._strangers
        table[key] = found
        if len(table) > REMEMBERED:
            table.popitem(last=False)
        return found.seen

    async def _sight(self, known: _CachedSight, namespaces: Collection[str]) -> Sight:
        user = known.user
        hosts, queues, pods, workloads = await asyncio.gather(
            *(self._may(user, resource, "") for resource in (NODES, CLUSTER_QUEUES, PODS, WORKLOADS))
        )
        if pods and workloads:
            return Sight(hosts, queues, None)
        # Nothing rather than the first thousand: what a viewer sees must not depend on the order of namespaces.
        if len(namespaces) > MOST_NAMESPACES:
            return Sight(hosts, queues, frozenset())
        now = self._clock()
        asked = [
            one
            for one in namespaces
            if one not in known.namespaces or now - known.namespaces[one][1] > NAMESPACE_SECONDS
        ]
        answers = await asyncio.gather(*(self._may_see_namespace(user, one) for one in asked))
        # Namespaces that hold nothing any more are forgotten, so the table stays bounded.
        there = {one: found for one, found in known.namespaces.items() if one in namespaces}
        there |= {one: (allowed, now) for one, allowed in zip(asked, answers, strict=True)}
        known.remember(there)
        return Sight(hosts, queues, frozenset(one for one, (allowed, _) in there.items() if allowed))

    async def _may_see_namespace(self, user: User, namespace: str) -> bool:
        return await self._may(user, WORKLOADS, namespace) and await self._may(user, PODS, namespace)

    async def _may(self, user: User, resource: Resource, namespace: str) -> bool:
        asked = {"group": resource.group, "resource": resource.plural, "verb": "list", "namespace": namespace}
        async with self._few:
            return await is_allowed(self._client, user, {"resourceAttributes": asked})

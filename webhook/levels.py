"""What jobs may ask for: the topology levels of the ResourceFlavors, and which of them each queue has."""

import asyncio
from typing import NamedTuple, Protocol

import structlog

from clock import Clock
from crds.levels import NO_NAMES, LevelNames
from engine.reasons import Reason
from kube.client import Client
from kube.errors import KubeTimeout
from kube.informer import Event, Informer
from kube.kept import KeptParts
from kube.objects import Condition, FlavorTopology, Object, ResourceFlavor, Struct, condition
from kube.resources import CLUSTER_QUEUES, LOCAL_QUEUES, RESOURCE_FLAVORS, Resource
from webhook.checks import Flavors, QueueRoute, Routes

log = structlog.get_logger(__name__)

OPEN = "None"  # stopPolicy of a queue that admits
# Reasons of Active=False that the queues' specs tell sooner than their status.
_IN_SPEC = frozenset({Reason.QUEUE_STOPPED, Reason.NO_QUEUE})


class LevelOffer(NamedTuple):
    """What jobs may ask for."""

    flavors: Flavors
    queues: Routes
    names: LevelNames = NO_NAMES


class LevelSource(Protocol):
    """Something that knows what is offered, perhaps after a while."""

    def current_offer(self) -> LevelOffer | None:
        """What is offered, another object after each change; None as long as it is not known."""

    async def wait_for_levels(self, seconds: float) -> None:
        """Wait until it is known, but no longer than this."""


class FixedLevels:
    """What is offered is known from the start, for tests and benchmarks."""

    def __init__(self, flavors: Flavors, queues: Routes | None = None) -> None:
        self._offer = LevelOffer(flavors, queues or {})

    def current_offer(self) -> LevelOffer | None:
        """What was given."""
        return self._offer

    async def wait_for_levels(self, seconds: float) -> None:
        """Nothing to wait for."""


class _QueueFlavor(Struct, frozen=True):
    name: str = ""


class _ResourceGroup(Struct, frozen=True):
    flavors: tuple[_QueueFlavor, ...] = ()


class _QueueSpec(Struct, frozen=True):
    cluster_queue: str = ""  # of a local queue
    resource_groups: tuple[_ResourceGroup, ...] | None = None  # of a cluster queue
    stop_policy: str = OPEN


class _QueueStatus(Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class _Queue(Object, frozen=True):
    """A local queue or cluster queue, as far as it is read here."""

    spec: _QueueSpec = _QueueSpec()
    status: _QueueStatus = _QueueStatus()


class _Seen(NamedTuple):
    """What counts of a queue: nothing is decided anew while it stays the same."""

    cluster_queue: str
    flavors: tuple[str, ...]
    stop: str
    inactive: str  # what its condition Active says, where that is False


class FlavorLevels:
    """What is offered, read by informers. It is put together when somebody asks after a change, and never changed."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._flavors: dict[str, FlavorTopology] = {}
        self._local: dict[str, _Seen] = {}
        self._cluster: dict[str, _Seen] = {}
        self._known = asyncio.Event()
        self._offer: LevelOffer | None = None
        self._informers: tuple[Informer[ResourceFlavor] | Informer[_Queue], ...] = (
            Informer(client, RESOURCE_FLAVORS, ResourceFlavor, on_event=self._on_flavor, clock=clock),
            self._queues(client, LOCAL_QUEUES, self._local, clock),
            self._queues(client, CLUSTER_QUEUES, self._cluster, clock),
        )

    def _queues(self, client: Client, kind: Resource, seen: dict[str, _Seen], clock: Clock) -> Informer[_Queue]:
        # Tenants may write LocalQueues: what they put into them must not fill the memory of the webhook.
        kept: KeptParts[_Queue] = KeptParts(kind.kind)
        return Informer(
            client, kind, _Queue, on_event=lambda event: self._on_queue(seen, event), clock=clock, kept=kept
        )

    def current_offer(self) -> LevelOffer | None:
        """What is offered now; None before everything is listed."""
        # All three lists first: a queue without its ClusterQueue would be told to its users as missing.
        if self._offer is None and self._known.is_set():
            flavors = {name: topology.levels for name, topology in self._flavors.items()}
            names = LevelNames.read((name, found.levels, found.names) for name, found in self._flavors.items())
            routes = {}
            for key, local in self._local.items():
                namespace, _, name = key.partition("/")
                routes[namespace, name] = _route(local, self._cluster.get(local.cluster_queue))
            self._offer = LevelOffer(flavors, routes, names)
        return self._offer

    async def wait_for_levels(self, seconds: float) -> None:
        """Wait for the first lists, but no longer than this."""
        if not self._known.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._known.wait()
            except TimeoutError:
                return

    async def run(self) -> None:
        """List and watch for ever; ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())
            group.create_task(self._note_first_lists())

    async def _note_first_lists(self) -> None:
        for informer in self._informers:
            synced = False
            while not synced:
                try:
                    await informer.wait_synced()
                except KubeTimeout as error:
                    log.warning("flavors or queues cannot be listed; trying again", error=str(error))
                else:
                    synced = True
        self._known.set()

    def _on_flavor(self, event: Event[ResourceFlavor]) -> None:
        topology = event.new.spec.topology if event.new is not None else None
        # A flavor without levels is one without a topology, and has nothing that could be asked for.
        if topology is not None and not topology.levels:
            topology = None
        # Status and labels change often. Only what counts voids the offer, and with it all decisions that are kept.
        if self._flavors.get(event.key) != topology:
            self._offer = None
            if topology is not None:
                self._flavors[event.key] = topology
            else:
                del self._flavors[event.key]

    def _on_queue(self, queues: dict[str, _Seen], event: Event[_Queue]) -> None:
        seen = None
        if event.new is not None:
            spec, active = event.new.spec, condition(event.new.status.conditions, "Active")
            flavors = tuple(flavor.name for group in spec.resource_groups or () for flavor in group.flavors)
            # The message of a condition counts only where the specs do not say why: a status comes later than they do.
            inactive = active is not None and active.status == "False" and active.reason not in _IN_SPEC
            seen = _Seen(spec.cluster_queue, flavors, spec.stop_policy, active.message if active and inactive else "")
        if queues.get(event.key) != seen:
            self._offer = None
            if seen is None:
                queues.pop(event.key, None)
            else:
                queues[event.key] = seen


def _route(local: _Seen, cluster: _Seen | None) -> QueueRoute:
    """Where a local queue leads, and why nothing is admitted there now."""
    name = local.cluster_queue
    if cluster is None:
        return QueueRoute(name, None, f"its ClusterQueue {name} does not exist")
    for what, queue in (("it", local), (f"its ClusterQueue {name}", cluster)):
        if queue.stop != OPEN:
            return QueueRoute(name, cluster.flavors, f"{what} is on hold (stopPolicy {queue.stop})")
    return QueueRoute(name, cluster.flavors, local.inactive)

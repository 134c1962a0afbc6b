"""A board that follows a cluster: fed by the controller's own informers, published a few times a second at most."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from clock import Clock
from crds.constants import HOSTNAME_LABEL, Keys
from engine.claims.read.claims import read_uses
from engine.devices.taints import read_rule
from kube import objects
from kube.client import Client
from kube.errors import KubeError
from kube.informer import Event, Informer
from kube.pods import convert
from kube.pods.devices import DeviceTaintRule, ResourceClaim, ResourceSlice
from kube.queues import LocalQueue
from kube.resources import WORKLOADS
from kube.topologies import FlexTopo
from kube.workloads import WholeWorkload, WorkloadObject
from ungater import kinds
from ungater.informers import Informers
from ungater.kinds import AnyKind
from ungater.numa.sources import DescribedMachine, describe
from web import facts
from web.board import Board
from web.hub import Hub

TICK: Final = 0.25  # seconds between two looks for changes
VERSION_SECONDS: Final = 300.0  # between two looks at the version of the API server
# Neither a picture nor a question needs them.
LEFT_OUT: Final = frozenset({kinds.BUDGETS, kinds.WORKLOAD_CLASSES, kinds.KUEUE_CLASSES})
log = structlog.get_logger()


class BoardFeed:
    """Turns objects into facts on a board. What of one object cannot be read costs that one alone."""

    def __init__(self, board: Board, keys: Keys, whole: Callable[[str], WholeWorkload | None]) -> None:
        self.board = board
        self._keys = keys
        self._whole = whole  # a Workload with its templates, by its key
        self.handlers: dict[AnyKind[Any], Callable[[Any, str], None]] = {
            kinds.FLAVORS: self.flavor,
            kinds.LOCAL_QUEUES: self.queue,
            kinds.NODES: self.node,
            kinds.FLEX_TOPOS: self.flex,
            kinds.WORKLOADS: self.workload,
            kinds.PODS: self.pod,
            kinds.RESOURCE_SLICES: self.resource_slice,
            kinds.TAINT_RULES: self.taint_rule,
            kinds.RESOURCE_CLAIMS: self.show_claim,
        }

    def node(self, node: objects.Node | None, key: str) -> None:
        """A node is there, or gone."""
        if node is None:
            self.board.remove_host(key)
            return
        label = (node.metadata.labels or {}).get(HOSTNAME_LABEL, "")
        self.board.set_host(convert.node(node), facts.host(node, self.board.resource), label)

    def flavor(self, flavor: objects.ResourceFlavor | None, key: str) -> None:
        """A flavor is there, or gone."""
        made = convert.flavor(flavor) if flavor is not None else None
        if made is None:
            self.board.hide_flavor(key)
        else:
            self.board.show_flavor(made)

    def queue(self, queue: LocalQueue | None, key: str) -> None:
        """A local queue is there, or gone."""
        self.board.set_queue(key, queue.spec.cluster_queue if queue is not None else None)

    def pod(self, pod: objects.Pod | None, key: str) -> None:
        """A pod is there, or gone."""
        made = facts.pod(pod, self.board.resource, self._keys) if pod is not None else None
        if made is None:
            self.board.hide_pod(key)
        else:
            self.board.set_pod(made)

    def workload(self, workload: WorkloadObject | None, key: str) -> None:
        """A Workload is there, or gone."""
        whole, made = self._whole(key), None
        if workload is not None:
            wanted = facts.asked(whole, self.board.resource) if whole is not None else ()
            made = facts.workload(workload, self.board.resource, wanted)
        if made is None:
            self.board.remove_holder(key)
        else:
            self.board.set_holder(made)

    def flex(self, flex: FlexTopo | None, key: str) -> None:
        """What an agent tells of a machine is there, or gone."""
        self.board.set_sockets(key, facts.sockets(flex) if flex is not None else {})

    def resource_slice(self, one: ResourceSlice | None, key: str) -> None:
        """A ResourceSlice is there, or gone."""
        self.board.set_slice(key, one.spec or {} if one is not None else None)

    def taint_rule(self, rule: DeviceTaintRule | None, key: str) -> None:
        """A DeviceTaintRule is there, or gone."""
        # The old rule goes first: if the new one cannot be read, its taints must not stay.
        self.board.set_taint_rule(key, None)
        if rule is not None:
            self.board.set_taint_rule(key, read_rule({"metadata": {"name": key}, "spec": rule.spec}))

    def show_claim(self, claim: ResourceClaim | None, key: str) -> None:
        """A ResourceClaim is there, or gone."""
        uses = None
        try:
            uses = read_uses(claim.results or [], f"ResourceClaim {key}") if claim is not None else None
        finally:
            # Also where the results cannot be read: the claim then has nothing, rather than what it had before.
            self.board.set_claim(key, uses or (), claim.reserved_for if claim is not None else frozenset())

    def take_all(self, objects_of: Callable[[AnyKind[Any]], Mapping[str, Any]]) -> None:
        """All objects that there are. ``objects_of``: those of a kind, by key."""
        for kind in self.handlers:
            # The informers write into the same stores.
            for key, one in tuple(objects_of(kind).items()):
                self.show_object(kind, key, one)

    def show_object(self, kind: AnyKind[Any], key: str, one: Any) -> None:
        """One object as it is now; None where it is gone."""
        try:
            self.handlers[kind](one, key)
        except Exception:
            log.exception("an object cannot be shown", kind=kind.word, key=key)


class Live:
    """Watches a cluster for as long as `run` runs."""

    def __init__(self, client: Client, keys: Keys, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._keys = keys
        self.version = ""  # of the API server, as it says; "": it did not yet
        self.informers = informers = Informers(client, keys, clock)
        self.templates: Informer[WholeWorkload] = Informer(client, WORKLOADS, WholeWorkload, clock=clock)
        self._feed: BoardFeed | None = None
        for kind in kinds.KINDS:
            informers.of(kind).subscribe(partial(self._show_event, kind))
        self.templates.subscribe(
            # Two informers watch Workloads, and either may be first. The second one completes the holder.
            lambda event: self._show_change(kinds.WORKLOADS, event.key, informers.look_up(kinds.WORKLOADS)(event.key))
        )

    def _show_event(self, kind: AnyKind[Any], event: Event[Any]) -> None:
        self._show_change(kind, event.key, event.new)

    def _show_change(self, kind: AnyKind[Any], key: str, one: Any) -> None:
        if self._feed is not None and kind in self._feed.handlers:  # before there is one, all is still being listed
            self._feed.show_object(kind, key, one)

    def inside_of_host(self, name: str) -> tuple[DescribedMachine | None, FlexTopo | None]:
        """What is known of the inside of a host."""
        node, flex = self.informers.node(name), self.informers.of(kinds.FLEX_TOPOS).get(name)
        if node is None:
            return None, None
        topology = self.informers.of(kinds.NODE_TOPOLOGIES).get(name)
        return describe(node, topology=topology, flex=flex), flex

    def silent_seconds(self) -> float:
        """Seconds since the API server said anything of nodes, pods or workloads."""
        heard = min(self.informers.of(kind).last_heard for kind in (kinds.NODES, kinds.PODS, kinds.WORKLOADS))
        return max(0.0, self._clock.now() - heard)

    def _optional(self) -> Iterator[Any]:
        """Those of kinds that need not be there, without two that neither a picture nor a question needs."""
        return (self.informers.of(kind) for kind in kinds.OPTIONAL if kind not in LEFT_OUT)

    async def run(self, ready: Callable[[Board], Awaitable[Hub]]) -> None:
        """List, then follow, until cancelled. ``ready`` opens the page once all is listed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_version())
            for one in (*self.informers.every, self.templates, *self._optional()):
                group.create_task(one.run())
            for one in (*self.informers.every, self.templates):
                await one.wait_synced()
            # The first answer is enough here, as a cluster may lack these kinds for ever.
            await asyncio.gather(*(one.first() for one in self._optional()))
            # Once, from all nodes: amounts of different resources on one board could not be compared.
            board = Board(facts.main_resource(self.informers.list_objects(kinds.NODES)))
            self.fill(board)
            hub = await ready(board)
            log.info("watching", hosts=len(board.hosts), pods=len(board.pods), workloads=len(board.holders))
            while True:
                hub.publish()
                hub.history.take_sample(board, self._clock.now())
                await asyncio.sleep(TICK)

    async def _follow_version(self) -> None:
        while True:
            # The version changes counting rules only; the last one known is a better answer than none.
            with suppress(KubeError, KeyError):
                self.version = await self._client.server_version()
            await asyncio.sleep(VERSION_SECONDS)

    def fill(self, board: Board) -> None:
        """Take in all that was listed, and follow it from here on."""
        self._feed = BoardFeed(board, self._keys, self.templates.store.get)
        self._feed.take_all(lambda kind: self.informers.of(kind).store)

"""Says of each flavor with a topology how its nodes stand: in its status, and as events on nodes that lack a label.

Rules
- A node that a flavor selects and that lacks the label of a level takes no pods, and is told so by an event: once for
  each change of what it lacks, and of the first `MOST_TOLD` such nodes only.
- What is odd about its labels as a whole (`ungater.status.flavor_labels`) is an event on the flavor, once for each
  change of it, and in its condition.
- The status is looked at after nodes or flavors changed, at most every `TICK`, and written where it differs from what
  the API server has: the answer to the last write counts until a newer one is seen. A write that fails is made again by
  a later look.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import structlog

from clock import Clock
from engine.cluster.state import ClusterState
from engine.cluster.unlabeled import Unlabeled, in_words, unlabeled
from engine.reasons import Reason
from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.events import EventRecorder, reference
from kube.objects import Condition, Node, ResourceFlavor, version_of
from kube.resources import NODES, RESOURCE_FLAVORS
from ungater.model import conditions
from ungater.model.conditions import WantedCondition
from ungater.status.flavor_labels import troubles
from ungater.status.queues import ACTIVE

TICK = 1.0  # seconds between two looks
EVERY = 3.0  # seconds between two writes of one flavor's numbers
AFTER_FAILURE = 10.0  # seconds
NOTHING: Mapping[Reason, str] = {}
MOST_TOLD = 20  # nodes of a flavor that get an event

log = structlog.get_logger(__name__)
_conditions = tuple[Condition, ...]


class FlavorSource(msgspec.Struct, frozen=True):
    """What is looked at. ``version`` grows when nodes or flavors change; the others are as the API server has them."""

    state: ClusterState
    version: Callable[[], int]
    flavors: Callable[[], Iterable[ResourceFlavor]]
    node: Callable[[str], Node | None]


class FlavorStatus(msgspec.Struct):
    """Call `run` as a task of the term of leadership that ``source`` belongs to."""

    client: Client
    source: FlavorSource
    recorder: EventRecorder
    clock: Clock
    # (flavor, node) -> what the node lacks.
    _told: dict[tuple[str, str], tuple[str, ...]] = msgspec.field(default_factory=dict)
    _odd: dict[str, dict[Reason, str]] = msgspec.field(default_factory=dict)  # by flavor: what is odd about its labels
    _seen: int = -1
    # By name: the answer to the last write.
    _made: dict[str, ResourceFlavor] = msgspec.field(default_factory=dict)
    _unsure: set[str] = msgspec.field(default_factory=set)  # whose last write failed, perhaps after it took effect

    async def run(self) -> None:
        """Look and write for ever; ends only by cancellation."""
        while True:
            await asyncio.sleep(await self.update())

    async def update(self) -> float:
        """Write and tell what is due; returns the seconds until the next look."""
        # Read before the looks: what changes while they are written is looked at the next time.
        version = self.source.version()
        if version == self._seen:
            return TICK
        failed, wrote = False, False
        for seen in tuple(self.source.flavors()):  # others may come while something is written
            if seen.spec.topology is None or seen.metadata.name not in self.source.state.flavors:
                continue
            try:
                wrote |= await self._look_at(seen)
            except KubeError as error:
                failed = True
                log.warning("status of a flavor not written", flavor=seen.metadata.name, error=str(error))
        if failed:
            return AFTER_FAILURE
        self._seen = version
        return EVERY if wrote else TICK

    async def _look_at(self, seen: ResourceFlavor) -> bool:
        """Tell and write of one flavor; True where something was written. Raises KubeError."""
        name = seen.metadata.name
        found, odd = unlabeled(self.source.state, name), dict(troubles(self.source.state, name))
        self._report_troubles(seen, found, odd)
        try:
            flavor = await self._newest(seen)
            tree = self.source.state.tree(name)
            status = changed(flavor, tree.size if tree is not None else 0, found, self.clock.now(), odd)
            if not status:
                return False
            # Before the call: after an answer that is lost nobody knows what is stored.
            self._unsure.add(name)
            self._made[name] = await self._patch(name, {"status": status})
        except NotFound:
            return False  # it was deleted meanwhile
        self._unsure.discard(name)
        return True

    async def _newest(self, seen: ResourceFlavor) -> ResourceFlavor:
        """What the API server has of a flavor: events about a write may come long after its answer."""
        name = seen.metadata.name
        if name in self._unsure:
            self._made[name] = await self._patch(name, {})  # changes nothing, and needs no right to read
            self._unsure.discard(name)
        made = self._made.get(name)
        if made is None or made.metadata.uid != seen.metadata.uid:
            return seen
        return max(seen, made, key=lambda one: version_of(one.metadata.resource_version))

    async def _patch(self, name: str, body: dict[str, Any]) -> ResourceFlavor:
        return await self.client.patch(RESOURCE_FLAVORS, name, body=body, subresource="status", type=ResourceFlavor)

    def _report_troubles(self, flavor: ResourceFlavor, found: tuple[Unlabeled, ...], odd: dict[Reason, str]) -> None:
        name = flavor.metadata.name
        lacking = {one.node: one.missing for one in found[:MOST_TOLD]}
        for node, missing in lacking.items():
            if self._told.get((name, node)) != missing and (wire := self.source.node(node)) is not None:
                self._told[name, node] = missing
                self.recorder.event(
                    reference(NODES, wire), "Warning", Reason.MISSING_LEVEL_LABEL, "Read", message_of(name, missing)
                )
        # A node that has its label is forgotten, and told again should it lose it.
        for key in [key for key in self._told if key[0] == name and key[1] not in lacking]:
            del self._told[key]
        for reason, text in odd.items():
            if self._odd.get(name, {}).get(reason) != text:
                regarding = reference(RESOURCE_FLAVORS, flavor)
                self.recorder.event(regarding, "Warning", reason, "Read", conditions.shorten(text))
        # What is gone is forgotten with it: it is an event again when it comes back.
        if odd:
            self._odd[name] = odd
        else:
            self._odd.pop(name, None)


def message_of(flavor: str, missing: tuple[str, ...]) -> str:
    """The event on a node."""
    labels = [level for level in missing if "=" not in level]
    unknown = [level for level in missing if "=" in level]
    lacks = f"lacks the label{'s' if len(labels) > 1 else ''} {', '.join(labels)}" if labels else ""
    says = f"says {', '.join(unknown)}, which names no domain" if unknown else ""
    what = " and ".join(filter(None, (lacks, says)))
    return f"ResourceFlavor {flavor} selects this node, but it {what}: no pods are placed here until it has a domain"


def changed(
    flavor: ResourceFlavor, nodes: int, found: tuple[Unlabeled, ...], now: float, odd: Mapping[Reason, str] = NOTHING
) -> dict[str, Any]:
    """What is to be written of a flavor's status. ``nodes``: with all labels; ``now``: seconds since the epoch.

    ``odd``: what is odd about its labels as a whole.
    """
    before = flavor.status or {}
    wanted = {"nodes": nodes, "nodesMissingLabels": len(found)}
    status: dict[str, Any] = {name: value for name, value in wanted.items() if before.get(name) != value}
    existing = msgspec.convert(before.get("conditions") or (), _conditions)
    lacking, text = in_words(found), f"{nodes} node{'s' if nodes > 1 else ''} can take pods"
    active = WantedCondition(ACTIVE, True, Reason.READY, text)
    if not nodes:
        text = "; ".join(filter(None, ("no pod can be placed here", lacking)))
        active = WantedCondition(ACTIVE, False, Reason.NO_NODES, text)
    elif lacking or odd:
        reason = Reason.MISSING_LEVEL_LABEL if lacking else next(iter(odd))
        said = "; ".join(filter(None, (text, lacking, *odd.values())))
        active = WantedCondition(ACTIVE, True, reason, conditions.shorten(said))
    merged = conditions.merge(existing, (active,), generation=flavor.metadata.generation, now=now)
    if merged is not None:
        status["conditions"] = conditions.plain(merged)
    return status

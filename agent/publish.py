"""Writes what the agent knows, only where it differs from what is there.

Rules
- One agent writes the FlexTopo of its node, and nobody else does; it belongs to the Node and goes with it.
- After a write whose outcome is not known, and now and then, what is there is read again.
- A NodeResourceTopology that somebody else writes is theirs: it is not touched (``auto``). Where two write the same one
  at once they meet in a Conflict, and then the other one has it.
"""

from typing import Literal

import msgspec
import structlog

from agent.metrics import AgentMetrics
from agent.status import condition
from agent.zones import Json
from clock import Clock
from engine.reasons import Reason
from kube.client import Client
from kube.errors import Conflict, KubeError, NotFound
from kube.objects import Object
from kube.patches import guard
from kube.resources import FLEX_TOPOS, NODE_RESOURCE_TOPOLOGIES
from kube.topologies import FlexTopoSpec, WholeFlexTopo, WholeFlexTopoStatus

MANAGER = "topogate-agent"
log = structlog.get_logger()

Outcome = Literal["written", "unchanged", "foreign", "absent"]
Ready = tuple[bool, Reason, str]


class FlexTopoWriter:
    """The FlexTopo of one node."""

    def __init__(self, client: Client, node: str, metrics: AgentMetrics, clock: Clock) -> None:
        self._clock = clock
        self._client = client
        self._node = node
        self._metrics = metrics
        self._known: WholeFlexTopo | None = None  # what the API server has; None: not known

    async def load(self) -> WholeFlexTopo | None:
        """Read what is there; None where there is nothing."""
        self._known = None
        try:
            found = await self._client.get(FLEX_TOPOS, self._node)
        except NotFound:
            return None
        try:
            self._known = msgspec.convert(found, WholeFlexTopo)
        except msgspec.ValidationError as error:  # of another version of the kind: it is written over
            log.warning("the FlexTopo that is there cannot be read", node=self._node, error=str(error))
            self._known = WholeFlexTopo(metadata=msgspec.convert(found, Object).metadata)
        return self._known

    def forget_stored(self) -> None:
        """Read again before the next write."""
        self._known = None

    async def write(self, spec: FlexTopoSpec, status: WholeFlexTopoStatus | None, ready: Ready, owner: Json) -> Outcome:
        """Bring the object to this. ``status`` None: what it says is kept, and only the condition changes."""
        known = self._known or await self.load()
        outcome: Outcome = "unchanged"
        try:
            if known is None:
                known, outcome = await self._create(spec, owner), "written"
            else:
                change: Json = {}
                if difference := merge_patch(_as_wire(known.spec), _as_wire(spec)):
                    change["spec"] = difference
                # A Node that was made again has another uid: the garbage collector would take the old one's objects.
                if msgspec.to_builtins(known.metadata.owner_references) != (owner,):
                    change["metadata"] = {"ownerReferences": [owner]}
                if change:
                    known, outcome = await self._patch(change), "written"
            now = self._clock.utc().strftime("%Y-%m-%dT%H:%M:%SZ")
            before = known.status
            made = condition(ready, before.conditions, now, known.metadata.generation)
            wanted = msgspec.structs.replace(status or before, conditions=(made,), observed_at=before.observed_at)
            # Nothing is written where only the time would change.
            if difference := merge_patch(_as_wire(before), _as_wire(wanted)):
                # The time is that of the kubelet's state: a message of the condition that changes leaves it as it is.
                if difference.keys() - {"conditions"}:
                    difference["observedAt"] = now
                # After the spec: whoever reads the status then finds all components that it names.
                known, outcome = await self._patch({"status": difference}, "status"), "written"
        except KubeError:
            self.forget_stored()
            self._metrics.writes.labels("flextopo", "failed").inc()
            raise
        self._known = known
        self._metrics.writes.labels("flextopo", outcome).inc()
        return outcome

    async def _create(self, spec: FlexTopoSpec, owner: Json) -> WholeFlexTopo:
        made = {
            "apiVersion": FLEX_TOPOS.api_version,
            "kind": FLEX_TOPOS.kind,
            "metadata": {"name": self._node, "ownerReferences": [owner]},
            "spec": spec,
        }
        return await self._client.create(FLEX_TOPOS, made, field_manager=MANAGER, type=WholeFlexTopo)

    async def _patch(self, change: Json, subresource: str | None = None) -> WholeFlexTopo:
        return await self._client.patch(
            FLEX_TOPOS, self._node, body=change, subresource=subresource, field_manager=MANAGER, type=WholeFlexTopo
        )


class TopologyWriter:
    """The NodeResourceTopology of one node. ``mode``: auto, always or never."""

    def __init__(self, client: Client, node: str, mode: str, metrics: AgentMetrics) -> None:
        self._client = client
        self._node = node
        self._mode = mode
        self._metrics = metrics
        self._known: Json | None = None
        self._loaded = False
        self._last: Outcome | None = None
        self._no_kind = False

    def forget_stored(self) -> None:
        """Read again before the next write: somebody else may have taken the object, or left it."""
        self._loaded = False

    async def write(self, wanted: Json, owner: Json) -> Outcome:
        """Bring the object to this, where that is ours to do."""
        if self._mode == "never":
            return "foreign"
        try:
            try:
                outcome = await self._write(wanted, owner)
            # Another exporter wrote in between: what it left is read, and in mode auto it is theirs from now on.
            except Conflict:
                self.forget_stored()
                outcome = await self._write(wanted, owner)
        except KubeError:
            self.forget_stored()
            self._metrics.writes.labels("noderesourcetopology", "failed").inc()
            raise
        self._metrics.writes.labels("noderesourcetopology", outcome).inc()
        if outcome != self._last and outcome in {"foreign", "absent"}:
            why = {
                "foreign": "another exporter writes this node's NodeResourceTopology: it is left alone",
                "absent": "the kind NodeResourceTopology is not installed: none is written",
            }[outcome]
            log.info(why, node=self._node)
        self._last = outcome
        return outcome

    async def _write(self, wanted: Json, owner: Json) -> Outcome:
        if not self._loaded:
            self._no_kind = False
            try:
                # A missing object and a missing kind answer alike here. Creating it tells them apart.
                self._known = await self._client.get(NODE_RESOURCE_TOPOLOGIES, self._node)
            except NotFound:
                self._known = None
            self._loaded = True
        if self._no_kind:
            return "absent"
        if self._known is not None and self._mode == "auto" and foreign(self._known):
            return "foreign"
        if self._known is None:
            return await self._create(wanted, owner)
        change = merge_patch(_content(self._known), _content(wanted))
        if not change:
            return "unchanged"
        version = self._known["metadata"]["resourceVersion"]
        self._known = await self._client.patch(
            NODE_RESOURCE_TOPOLOGIES,
            self._node,
            body=guard(change, resource_version=version),
            field_manager=MANAGER,
            type=dict,
        )
        return "written"

    async def _create(self, wanted: Json, owner: Json) -> Outcome:
        body = wanted | {"metadata": wanted["metadata"] | {"ownerReferences": [owner]}}
        try:
            self._known = await self._client.create(NODE_RESOURCE_TOPOLOGIES, body, field_manager=MANAGER)
        except NotFound:  # the kind itself is not there
            self._no_kind = True
            return "absent"
        return "written"


def foreign(found: Json) -> bool:
    """Whether somebody else writes this NodeResourceTopology: its zones, or all of it, are another manager's."""
    # The API server keeps this record itself, so no exporter has to say whose the object is.
    managers = {
        entry.get("manager", "")
        for entry in found["metadata"].get("managedFields") or ()
        if "f:zones" in (entry.get("fieldsV1") or {})
    }
    return managers != {MANAGER}


def merge_patch(before: Json, after: Json) -> Json:
    """The merge patch (RFC 7386) from one object to another; {} where they are equal."""
    change: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            if inner := merge_patch(old, value):
                change[name] = inner
        elif old != value:
            change[name] = value
    return change


def _content(topology: Json) -> Json:
    return {name: topology.get(name) or [] for name in ("topologyPolicies", "attributes", "zones")}


def _as_wire(found: FlexTopoSpec | WholeFlexTopoStatus) -> Json:
    """As it is on the wire, without what has its default."""
    plain: Json = msgspec.to_builtins(found)
    return plain

"""One host from inside, and one workload with its pods, as JSON. Pure.

What a viewer may not name is ``holder`` 0 without a name.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from crds.graph import NIC
from engine.kubelet.devices.links import LEVELS, NVLINK, LinkGraph, bits
from engine.kubelet.machine import Machine
from kube.topologies import FlexTopo
from ungater.numa.sources import DescribedMachine
from web.board import Board
from web.claim_devices import ClaimedDevice
from web.facts import CPU, BoundPod, ConditionStep
from web.picture import holder_row
from web.sight import Sight

Json = dict[str, Any]
MOST_PODS: Final = 5000  # of one workload
MOST_DEVICES: Final = 256  # of claims, on one host: those that somebody has come first
_LEVELS: Final = {weight: name for name, weight in LEVELS.items()}


def machine(board: Board, sight: Sight, name: str, described: DescribedMachine | None, flex: FlexTopo | None) -> Json:
    """A host: its zones, devices, links and NICs where they are known, and the pods on it."""
    found, pods = described.machine if described is not None else None, board.pods_on(name)
    row = board.row(name)
    made: Json = {
        "name": name,
        "amount": row.amount,
        "state": row.state,
        "resource": board.resource,
        "pods": [_pod(board, sight, pod) for pod in pods],
        "kept": [
            # The amount stays even where the name may not be told: the host would seem freer than it is.
            [one.holder if sight.may_name(board.keys[one.holder].partition("/")[0]) else 0, one.promised]
            for one in row.held
            if one.promised
        ],
        "source": described.source if described is not None else "",
        "problems": [*described.problems, *described.disagreements] if described is not None else [],
    }
    devices, wrong = board.devices_on(name, found.pcie_roots if found is not None else {})
    # The inner sort chooses, held devices first; the outer one brings the chosen back into the scheduler's order.
    shown = sorted(sorted(range(len(devices)), key=lambda at: not devices[at].claims)[:MOST_DEVICES])
    made["claimed"] = list(_claimed(board, sight, [devices[at] for at in shown], pods))
    made["more"] = len(devices) - len(shown)
    made["problems"] += wrong
    if found is not None:
        layout = found.layout
        made |= {"policy": layout.kubelet.policy, "scope": layout.kubelet.scope}
        made["zones"] = [  # what each has for pods; amounts are milli-CPU, bytes and units
            {
                "zone": zone.id,
                "socket": zone.socket,
                "have": {name: amount for name, amount in zip(layout.resources, have, strict=True) if amount >= 0},
                "free": {name: amount for name, amount in zip(layout.resources, free, strict=True) if amount >= 0},
            }
            for zone, have, free in zip(layout.zones, layout.allocatable, found.state.free, strict=True)
        ]
        made["devices"] = _devices_of_machine(board, found, pods)
        made["links"] = list(_links(found, board.resource))
        near = {edge.source: edge.target for edge in (flex.spec.edges or ())} if flex is not None else {}
        made["nics"] = [
            {"name": (one.attributes or {}).get("names", "") or one.id, "zone": near.get(one.id, "")}
            for one in ((flex.spec.nodes or ()) if flex is not None else ())
            if one.type == NIC
        ]
    return made


def _pod(board: Board, sight: Sight, pod: BoundPod) -> Json:
    if not sight.may_name(pod.key.partition("/")[0]):
        zones = [{"zone": one.zone, "amounts": one.amounts} for one in pod.placement.zones] if pod.placement else []
        return {"name": "", "holder": 0, "amount": pod.amount, "crosses": board.crosses(pod), "zones": zones}
    return {
        "name": pod.key,
        "holder": board.numbers.get(pod.holder, 0),
        "amount": pod.amount,
        "rank": pod.rank,
        "phase": pod.phase,
        "reason": pod.reason,
        "crosses": board.crosses(pod),
        "observed": pod.observed,
        "zones": [{"zone": one.zone, "amounts": one.amounts} for one in pod.placement.zones] if pod.placement else [],
    }


def _claimed(board: Board, sight: Sight, devices: Iterable[ClaimedDevice], pods: Sequence[BoundPod]) -> Iterator[Json]:
    """Devices of claims: their zones, and which of the pods has each; ``claims`` names those of nobody who is here.

    ``others``: somebody has it who is not here and whom the viewer may not know.
    """
    of: dict[str, list[int]] = {}
    for at, pod in enumerate(pods):
        for claim in board.claims_of(pod.key):
            of.setdefault(claim, []).append(at)
    for one in devices:
        driver, pool, name = one.device
        away = [claim for claim in one.claims if claim not in of]
        named = [claim for claim in away if sight.may_name(claim.partition("/")[0])]
        yield {
            "driver": driver,
            "pool": pool,
            "name": name,
            "zones": one.zones,
            "state": one.state,
            "taint": one.taint,
            "pods": sorted({at for claim in one.claims for at in of.get(claim, ())}),
            "claims": named,
            "others": len(named) < len(away),
        }


def _devices_of_machine(board: Board, found: Machine, pods: Iterable[BoundPod]) -> list[Json]:
    """The devices of the resource: their zones, and the pod that has each, where that is known."""
    layout = found.layout
    # CPUs count in thousandths here: each would become a device.
    if board.resource == CPU or board.resource not in layout.resources:
        return []
    row, ids = layout.resources.index(board.resource), found.device_ids.get(board.resource, ())
    known = layout.devices[row] if row < len(layout.devices) else ()
    of = {
        device: at
        for at, pod in enumerate(pods)
        for use in (pod.placement.zones if pod.placement is not None else ())
        for device in use.devices.get(board.resource, ())
    }
    graph = layout.links[row] if row < len(layout.links) else None
    # The exact devices where the agent publishes them, else those of the links, which have zones too.
    masks = [one.zones for one in known] or (list(graph.zones) if isinstance(graph, LinkGraph) else [])
    if not masks:  # amounts alone: so many in each zone
        masks = [1 << at for at, have in enumerate(layout.allocatable) for _ in range(max(0, have[row]))]
    return [
        {
            "id": ids[at] if at < len(ids) else "",
            "zones": [layout.zones[bit].id for bit in bits(mask) if bit < len(layout.zones)],
            "healthy": known[at].healthy if at < len(known) else True,
            "pod": of.get(ids[at], -1) if at < len(ids) else -1,
        }
        for at, mask in enumerate(masks)
    ]


def _links(found: Machine, resource: str) -> Iterator[list[Any]]:
    """``[device, device, NVLinks, PCIe level]`` of each pair of which something is known."""
    row = found.layout.resources.index(resource) if resource in found.layout.resources else len(found.layout.links)
    graph = found.layout.links[row] if row < len(found.layout.links) else None
    if not isinstance(graph, LinkGraph):
        return
    for one in range(graph.size):
        for other in range(one + 1, graph.size):
            if weight := graph.weights[one][other]:
                # A weight is the PCIe level plus NVLINK for each link, so the remainder is the level.
                yield [one, other, graph.nvlinks[one][other], _LEVELS.get(weight % NVLINK, "")]


def workload(board: Board, key: str) -> Json | None:
    """A holder: its row, what happened to it, and its pods in rank order; None where nothing of it is left."""
    row, one = holder_row(board, key), board.find_holder(key)
    if row is None or one is None:
        return None
    pods, steps = board.pods_of_holder(key), list(one.steps)
    gone = [pod for pod in pods if not pod.gated]
    if one.admitted and gone:
        # Its pods were let go: no condition tells, but that the last of them was bound, which follows at once.
        left = len(pods) - len(gone)
        text = f"{left} of {len(pods)} pods wait behind their gate" if left else ""
        at = max(one.admitted, *(pod.bound for pod in gone))
        steps.append(ConditionStep("Ungated", status=True, at=at, reason="", message=text))
    return {
        "row": row,
        "message": one.message,
        "asked": [[a.name, a.count, a.amount, a.policy, a.level] for a in one.asked],
        "steps": [[s.type, s.status, s.at, s.reason, s.message] for s in steps],
        "slots": list(one.slots),
        "many": len(pods),
        "pods": [
            [p.key.partition("/")[2], p.node, p.rank, p.phase, p.gated, p.amount, board.crosses(p), p.reason]
            # `many` has the true count.
            for p in pods[:MOST_PODS]
        ],
    }

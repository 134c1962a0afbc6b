"""A machine of which only the links of its GPUs are known, from annotations on its node.

``nvlink-matrix`` is the graph (`kube.links`), ``gpu-states`` says of each GPU whether it is free. Nothing says how the
kubelet aligns, so the policy is ``none``. Zones are those that the matrix prints for each GPU; where it prints none,
the machine is one zone, and that zone's id means nothing.
"""

from collections.abc import Mapping

import msgspec

from crds.constants import GPU_STATES
from engine.kubelet.device_manager import is_gpu
from engine.kubelet.devices.links import LinkError, LinkGraph, mask_of
from engine.kubelet.machine import Kubelet, Layout, Machine, State, Zone
from kube.links import device_links, from_annotations
from kube.objects import Quantities
from ungater.numa.sources.checked import Problems

KIND = "Node"
FREE = "free"
_NVIDIA = "nvidia.com/gpu"

_states = msgspec.json.Decoder(list[str]).decode


def machine_of(
    node: str,
    annotations: Mapping[str, str],
    allocatable: Quantities | None,
    problems: Problems,
    *,
    version: tuple[int, int],
    ignored: tuple[str, ...] = (),
) -> tuple[Machine, bool] | None:
    """The machine, and whether its zones are known; None without a matrix that can be used."""
    try:
        matrix = from_annotations(annotations)
    except LinkError as error:
        problems.add_problems((str(error),))
        return None
    if matrix is None:
        return None
    count = len(matrix.words)
    resource = next((name for name in sorted(allocatable or ()) if is_gpu(name)), _NVIDIA)
    # A zone for some of the GPUs alone is no picture: the machine counts as one zone then.
    known = len(matrix.zones) == count and all(zone is not None for zone in matrix.zones)
    of_gpu = [zone for zone in matrix.zones if zone is not None] if known else [0] * count
    zones = sorted(set(of_gpu))
    links = device_links(resource, count, zone_ids=zones if known else (), annotations=annotations)
    problems.add_problems(links.problems)
    declared = free_gpus(annotations, count, problems)
    free = set(range(count)) if declared is None else declared
    table = [[(zone == own, zone == own and at in free) for at, own in enumerate(of_gpu)] for zone in zones]
    installed = tuple((sum(here for here, _ in row),) for row in table)
    layout = Layout(
        zones=tuple(Zone(id=zone) for zone in zones),
        resources=(resource,),
        capacity=installed,
        allocatable=installed,
        kubelet=Kubelet(version=version),
        links=() if links.found is None else (links.found,),
        ignored=ignored,
    )
    left = tuple((sum(unused for _, unused in row),) for row in table)
    named = () if declared is None else ((resource, mask_of(sorted(declared))),)
    return Machine(node=node, layout=layout, state=State(free=left, declared_free=named)), known


def with_free_gpus(machine: Machine, annotations: Mapping[str, str], problems: Problems) -> Machine:
    """A machine of which amounts alone are known, with which of its linked GPUs the node says are free."""
    free = {
        resource: found
        for resource, rules in zip(machine.layout.resources, machine.layout.links, strict=False)
        if isinstance(rules, LinkGraph) and (found := free_gpus(annotations, rules.size, problems)) is not None
    }
    if not free:
        return machine
    declared = tuple((resource, mask_of(sorted(gpus))) for resource, gpus in free.items())
    return msgspec.structs.replace(machine, state=msgspec.structs.replace(machine.state, declared_free=declared))


def free_gpus(annotations: Mapping[str, str], count: int, problems: Problems) -> set[int] | None:
    """The GPUs that the node says are free, by index; None where it does not say it of each of them."""
    text = annotations.get(GPU_STATES)
    if text is None:
        return None
    field = f"metadata.annotations[{GPU_STATES}]"
    try:
        states = _states(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        problems.add(field, text, 'a JSON list of words, such as ["free", "allocated"]')
        return None
    if len(states) != count:
        problems.add(field, f"{len(states)} states", f"one for each of {count} GPUs")
        return None
    return {at for at, state in enumerate(states) if state == FREE}

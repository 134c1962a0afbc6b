"""A machine of which only the links of its GPUs are known, from annotations on its node.

``nvlink-matrix`` is the graph (`kube.links`), ``gpu-states`` says of each GPU whether it is free. Nothing says how the
kubelet aligns, so the policy is ``none``. Zones are those that the matrix prints for each GPU; where it prints none,
the machine is one zone, and that zone's id means nothing.
"""

from collections.abc import Mapping

import msgspec

from crds.constants import GPU_STATES
from engine.kubelet.device_manager import is_gpu
from engine.kubelet.devices.links import LinkError
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
        problems.told((str(error),))
        return None
    if matrix is None:
        return None
    count = len(matrix.words)
    resource = next((name for name in sorted(allocatable or ()) if is_gpu(name)), _NVIDIA)
    known = len(matrix.zones) == count and all(zone is not None for zone in matrix.zones)
    of_gpu = [zone for zone in matrix.zones if zone is not None] if known else [0] * count
    zones = sorted(set(of_gpu))
    links = device_links(resource, count, zone_ids=zones if known else (), annotations=annotations)
    problems.told(links.problems)
    free = _free(annotations, count, problems)
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
    return Machine(node=node, layout=layout, state=State(free=left)), known


def _free(annotations: Mapping[str, str], count: int, problems: Problems) -> set[int]:
    """The GPUs that are free; all where nothing says otherwise."""
    text = annotations.get(GPU_STATES)
    if text is None:
        return set(range(count))
    field = f"metadata.annotations[{GPU_STATES}]"
    try:
        states = _states(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        problems.add(field, text, 'a JSON list of words, such as ["free", "allocated"]')
        return set(range(count))
    if len(states) != count:
        problems.add(field, f"{len(states)} states", f"one for each of {count} GPUs")
        return set(range(count))
    return {at for at, state in enumerate(states) if state == FREE}

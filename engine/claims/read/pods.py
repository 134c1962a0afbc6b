"""What a pod's containers ask for, and what a node has, from JSON."""

from collections.abc import Mapping

from engine.claims.extended import ContainerAsk
from engine.claims.quantities import Quantity
from engine.claims.read.fields import Fields


def read_containers(pod: object) -> tuple[ContainerAsk, ...]:
    """The containers of a pod, init containers first.

    Raises:
        ObjectError: the pod is none.
    """
    whole = Fields.of_object("Pod", pod)
    spec = whole.fields_of("spec") or Fields(whole.what, "spec", {})
    return tuple(
        ContainerAsk(
            name=part.text("name"),
            early=kind == "initContainers" and part.text("restartPolicy") != "Always",
            requests={} if resources is None else resources.quantities("requests"),
        )
        for kind in ("initContainers", "containers")
        for part in spec.parts_of_list(kind)
        for resources in (part.fields_of("resources"),)
    )


def read_allocatable(node: object) -> Mapping[str, Quantity]:
    """What a node has of plain resources: ``allocatable`` of its status.

    Raises:
        ObjectError: an amount is none.
    """
    return Fields("Node", "", {"status": node}).quantities("status")

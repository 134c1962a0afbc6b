"""Topology and ResourceFlavor: ours has its levels itself, so a Topology goes into each flavor that names it."""

from collections.abc import Iterator
from typing import Final

from cli.migrate.conversion import METADATA, Scene, name_of
from cli.migrate.leaves import FieldTable, Leaf
from cli.migrate.rows import TAKEN, FieldVerdict, Json, changed, left, refused
from cli.output import some

TOPOLOGY: Final = "Topology"
FLAVOR: Final = "ResourceFlavor"
IN_FLAVORS: Final = "a flavor has the levels itself"


def judge_topology(scene: Scene) -> FieldVerdict:
    """The whole of a Topology."""
    users = flavors_with(name_of(scene.body), scene)
    if not users:
        return changed("no flavor uses this topology, so nothing is made of it")
    return changed(IN_FLAVORS, f"spec.topology.levels of ResourceFlavor {some(users)}")


def flavors_with(topology: str, scene: Scene) -> list[str]:
    """The names of the flavors that use a topology."""
    found = (name for (kind, name), body in scene.known.bodies.items() if kind == FLAVOR and _named(body) == topology)
    return sorted(found)


def _named(flavor: Json) -> str | None:
    spec = flavor.get("spec")
    name = spec.get("topologyName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else None


TOPOLOGIES: Final = FieldTable[Scene](METADATA, {"spec.levels[].nodeLabel": lambda _, scene: judge_topology(scene)})


def judge_topology_name(leaf: Leaf, scene: Scene) -> FieldVerdict:
    """The name of a topology in a flavor."""
    if scene.known.find_body(TOPOLOGY, str(leaf.value)) is None:
        return refused(
            f"Topology {str(leaf.value)[:253]} does not exist (Kueue: the queues of the flavor are inactive, "
            "TopologyNotFound)",
            "give its file too, or remove topologyName",
            grave=True,
        )
    return changed(IN_FLAVORS, "spec.topology.levels")


FLAVORS: Final = FieldTable[Scene](
    METADATA,
    {
        "spec.nodeLabels.*": TAKEN,
        **{f"spec.nodeTaints[].{key}": TAKEN for key in ("key", "value", "effect")},
        "spec.nodeTaints[].timeAdded": left("when the taint was added to a node"),
        **{f"spec.tolerations[].{key}": TAKEN for key in ("key", "operator", "value", "effect", "tolerationSeconds")},
        "spec.topologyName": judge_topology_name,
    },
)


def finish_flavor(made: Json, scene: Scene) -> Iterator[tuple[str, FieldVerdict]]:
    """Give the flavor the levels of its topology."""
    topology = scene.known.find_body(TOPOLOGY, _named(scene.body) or "")
    if topology is None:
        return
    spec = topology.get("spec")
    levels = spec.get("levels") if isinstance(spec, dict) else None
    labels = [level.get("nodeLabel") for level in levels if isinstance(level, dict)] if isinstance(levels, list) else []
    # Labels of another type stay, and are refused as a level of the flavor.
    made.setdefault("spec", {})["topology"] = {"levels": labels}
    if not (made["spec"].get("nodeLabels") or {}):
        yield (
            "spec.nodeLabels",
            refused("a flavor with a topology needs a label of its nodes", "add one, as Kueue asks too", grave=True),
        )

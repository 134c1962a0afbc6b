"""ResourceFlavor: a kind of node, and how its nodes are laid out in the data center."""

from typing import Annotated

from pydantic import ConfigDict, Field

from crds.constants import HOSTNAME_LABEL, MAX_LEVELS
from crds.kinds.common import (
    AGE,
    ATOMIC,
    ATOMIC_MAP,
    ApiModel,
    ApiObject,
    Column,
    Conditions,
    Count,
    Definition,
    LabelKey,
    LabelValue,
    NodeLabels,
    Taint,
    Toleration,
    cel,
    condition_column,
)

AUTO = "auto"

# A rule and not a list of type set: of a set two managers may each own entries, and here the order is the meaning.
_LEVEL_RULES = cel(
    ("self.all(level, self.exists_one(other, other == level))", "levels must be unique"),
    (
        f"self.all(level, level != '{HOSTNAME_LABEL}' || level == self[size(self) - 1])",
        f"{HOSTNAME_LABEL} may only be the last level: nothing is narrower than a host",
    ),
)


_NAME_RULES = {
    **ATOMIC_MAP,
    **cel(
        (
            # By a rule, for a structural schema has nothing to say of the keys of a map.
            "self.all(name, size(name) <= 63 && name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$'))",
            "names must begin with a letter, and have at most 63 lower case letters, digits and '-'",
        ),
        (f"!('{AUTO}' in self)", f"{AUTO} cannot be a name: it means the narrowest level"),
    ),
}


class Topology(ApiModel):
    """How the flavor's nodes are laid out."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.names) || self.names.all(name, self.names[name] in self.levels && !(name in self.levels))",
                "names must refer to levels of this flavor, and must not be levels themselves",
            ),
        )
    )

    levels: Annotated[
        list[LabelKey], Field(min_length=1, max_length=MAX_LEVELS, json_schema_extra={**ATOMIC, **_LEVEL_RULES})
    ]
    """The node label keys of the levels, the widest first. The last one is often kubernetes.io/hostname."""
    names: Annotated[dict[str, LabelKey], Field(min_length=1, max_length=16, json_schema_extra=_NAME_RULES)] | None = (
        None
    )
    """Names that jobs may use for levels, such as rack, with the label key of each."""
    # Absent and empty differ: with an empty list every value is a domain.
    unknown_values: Annotated[list[LabelValue], Field(max_length=16, json_schema_extra=ATOMIC)] | None = None
    """Label values that name no domain. A node with one of them takes no pods. If absent: no-topology, none and
    unknown."""


class ResourceFlavorSpec(ApiModel):
    """Which nodes belong to the flavor, and what their pods need."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.topology) || (has(self.nodeLabels) && size(self.nodeLabels) > 0)",
                "nodeLabels must have at least one label if topology is set",
            ),
            (
                # A rule that names oldSelf is asked of updates alone, so a flavor may be created with any levels.
                "!has(oldSelf.topology) || (has(self.topology) && self.topology.levels == oldSelf.topology.levels)",
                "topology cannot be changed once set, as stored assignments refer to its levels: create another flavor",
            ),
            (
                (
                    "!has(oldSelf.topology) || !has(oldSelf.topology.names) || (has(self.topology)"
                    " && has(self.topology.names) && oldSelf.topology.names.all(name, name in self.topology.names"
                    " && self.topology.names[name] == oldSelf.topology.names[name]))"
                ),
                "names of levels cannot be changed or removed once set, as jobs use them; more can be added",
            ),
            (
                "!has(self.nodeLabels) || self.nodeLabels.all(key, !format.qualifiedName().validate(key).hasValue())",
                "keys of nodeLabels must be valid label keys",
            ),
        )
    )

    node_labels: NodeLabels | None = None
    """The labels of the nodes. Pods that are placed here get them as their node selector."""
    node_taints: Annotated[list[Taint], Field(max_length=8, json_schema_extra=ATOMIC)] | None = None
    """Taints of the nodes, which a pod set must tolerate."""
    tolerations: Annotated[list[Toleration], Field(max_length=8, json_schema_extra=ATOMIC)] | None = None
    """Tolerations that are added to pods that are placed here."""
    topology: Topology | None = None
    """The topology of the nodes. If absent, this flavor cannot serve topology requests."""


class ResourceFlavorStatus(ApiModel):
    """What the controller sees of the flavor's nodes."""

    conditions: Conditions | None = None
    """The conditions. `Active` says whether pods can be placed here, and if not, why."""
    nodes: Count | None = None
    """The number of nodes that have the labels of all levels."""
    nodes_missing_labels: Count | None = None
    """The number of nodes that lack the label of a level, and therefore take no pods."""


class ResourceFlavor(ApiObject):
    """ResourceFlavor describes a kind of node, and the levels of the topology of these nodes."""

    definition = Definition(
        plural="resourceflavors",
        singular="resourceflavor",
        short_names=("rf",),
        namespaced=False,
        columns=(
            Column("Levels", ".spec.topology.levels", "string"),
            Column("Names", ".spec.topology.names", "string", priority=1),
            Column("Nodes", ".status.nodes", "integer"),
            Column("Unlabeled", ".status.nodesMissingLabels", "integer"),
            condition_column("Reason", "Active", "reason"),
            AGE,
            condition_column("Message", "Active", "message", priority=1),
        ),
    )

    spec: ResourceFlavorSpec = Field(default_factory=ResourceFlavorSpec)
    """The desired state."""
    status: ResourceFlavorStatus | None = None
    """The observed state."""

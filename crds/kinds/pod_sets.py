"""The pod sets of a Workload: pods with one template, and which domain they should share."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from crds.kinds.common import (
    ATOMIC,
    ATOMIC_MAP,
    ApiModel,
    Count,
    LabelKey,
    LabelName,
    PodSetName,
    cel,
)

_AUTO = "auto"

# The template is stored as the job has it: the API server has checked it there. Atomic, so that the field manager's
# record of it is one entry instead of one for each of its fields.
PodTemplate = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True, **ATOMIC_MAP}),
]


class SliceConstraint(ApiModel):
    """One layer of nested slices: each run of ``size`` pods stays within one domain of ``topology``."""

    topology: LabelKey
    """The level."""
    size: Annotated[int, Field(ge=1, le=1_000_000)]
    """Pods in a slice."""


class TopologyRequest(ApiModel):
    """Which domain the pods of a pod set should share."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.policy == 'Unconstrained' || has(self.level)", "level is required unless policy is Unconstrained"),
            (
                "self.policy != 'Unconstrained' || !has(self.level)",
                "level must be absent where policy is Unconstrained",
            ),
            (
                f"!has(self.level) || self.level != '{_AUTO}' || self.policy == 'Preferred'",
                "level auto (the narrowest) goes with policy Preferred only",
            ),
            (
                "has(self.podSetSliceRequiredTopology) == has(self.podSetSliceSize)",
                "podSetSliceRequiredTopology and podSetSliceSize come together",
            ),
            (
                "!has(self.podSetSliceRequiredTopologyConstraints) || !has(self.podSetSliceSize)",
                "podSetSliceRequiredTopologyConstraints replaces podSetSliceRequiredTopology and podSetSliceSize",
            ),
        )
    )

    policy: Literal["Required", "Preferred", "Unconstrained"]
    """Required: one domain or none; Preferred: as few as possible; Unconstrained: anywhere."""
    level: LabelKey | None = None
    """Its node label key, or a name that flavors give it; auto, with Preferred: the narrowest."""
    pod_index_label: LabelKey | None = None
    """The pod label that holds the rank."""
    sub_group_index_label: LabelKey | None = None
    """The pod label that tells replicated jobs of one pod set apart."""
    sub_group_count: Count | None = None
    """Replicated jobs in the pod set."""
    pod_set_group_name: LabelName | None = None
    """Pod sets of one group (a leader and its workers) share one domain."""
    pod_set_slice_required_topology: LabelKey | None = None
    """The level that each slice of podSetSliceSize pods must share."""
    pod_set_slice_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Pods in a slice."""
    pod_set_slice_required_topology_constraints: (
        Annotated[list[SliceConstraint], Field(min_length=1, max_length=3, json_schema_extra=ATOMIC)] | None
    ) = None
    """Slices within slices, the widest first."""


class PodSet(ApiModel):
    """Pods with one template."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("!has(self.minCount) || self.minCount <= self.count", "minCount must not exceed count"),
            (
                (
                    "!has(self.topologyRequest) || !has(self.topologyRequest.podSetSliceSize)"
                    " || self.count % self.topologyRequest.podSetSliceSize == 0"
                ),
                "count must be a multiple of topologyRequest.podSetSliceSize",
            ),
            (
                (
                    "!has(self.topologyRequest) || !has(self.topologyRequest.podSetSliceRequiredTopologyConstraints)"
                    " || self.count % self.topologyRequest.podSetSliceRequiredTopologyConstraints[0].size == 0"
                ),
                "count must be a multiple of the first size of topologyRequest.podSetSliceRequiredTopologyConstraints",
            ),
        )
    )

    name: PodSetName
    """Name within the workload."""
    count: Count
    """How many pods."""
    min_count: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """How few pods are of use, where it may be admitted in part."""
    template: PodTemplate
    """The pod template: labels and annotations of its metadata, and spec."""
    topology_request: TopologyRequest | None = None
    """Which domain the pods should share."""

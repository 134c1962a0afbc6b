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
    """The level that each slice must share."""
    size: Annotated[int, Field(ge=1, le=1_000_000)]
    """The number of pods in a slice."""


class TopologyRequest(ApiModel):
    """Which domain the pods of a pod set should share."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.policy == 'Unconstrained' || has(self.level)", "level is required unless policy is Unconstrained"),
            (
                "self.policy != 'Unconstrained' || !has(self.level)",
                "level must be absent if policy is Unconstrained",
            ),
            (
                f"!has(self.level) || self.level != '{_AUTO}' || self.policy == 'Preferred'",
                "level auto (the narrowest) can only be used with policy Preferred",
            ),
            (
                "has(self.podSetSliceRequiredTopology) == has(self.podSetSliceSize)",
                "podSetSliceRequiredTopology and podSetSliceSize must be set together",
            ),
            (
                "!has(self.podSetSliceRequiredTopologyConstraints) || !has(self.podSetSliceSize)",
                "podSetSliceRequiredTopologyConstraints replaces podSetSliceRequiredTopology and podSetSliceSize",
            ),
        )
    )

    policy: Literal["Required", "Preferred", "Unconstrained"]
    """How strict the request is. Required: one domain, or the pods wait. Preferred: as few domains as possible.
    Unconstrained: anywhere."""
    level: LabelKey | None = None
    """The level: its node label key, or a name that flavors give it. With Preferred, auto means the narrowest level."""
    pod_index_label: LabelKey | None = None
    """The pod label that holds the rank."""
    sub_group_index_label: LabelKey | None = None
    """The pod label that tells the replicated jobs of the pod set apart."""
    sub_group_count: Count | None = None
    """The number of replicated jobs in the pod set."""
    pod_set_group_name: LabelName | None = None
    """The group of the pod set. Pod sets of one group, such as a leader and its workers, share one domain."""
    pod_set_slice_required_topology: LabelKey | None = None
    """The level that each slice of podSetSliceSize pods must share."""
    pod_set_slice_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The number of pods in a slice."""
    pod_set_slice_required_topology_constraints: (
        Annotated[list[SliceConstraint], Field(min_length=1, max_length=3, json_schema_extra=ATOMIC)] | None
    ) = None
    """Layers of slices within slices, the widest first."""


class PodSet(ApiModel):
    """Pods with one template."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("!has(self.minCount) || self.minCount <= self.count", "minCount must not exceed count"),
            (
                (
                    # As `crds.slices.uneven` has it for Jobs: administrators may write a Workload past the webhook.
                    "!has(self.topologyRequest) || !has(self.topologyRequest.podSetSliceRequiredTopologyConstraints)"
                    " || self.topologyRequest.podSetSliceRequiredTopologyConstraints.size() < 2"
                    " || self.count % self.topologyRequest.podSetSliceRequiredTopologyConstraints[0].size == 0"
                ),
                (
                    "count must be a multiple of the first of several sizes of "
                    "topologyRequest.podSetSliceRequiredTopologyConstraints"
                ),
            ),
        )
    )

    name: PodSetName
    """The name of the pod set within the workload."""
    count: Count
    """The number of pods."""
    min_count: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """The least number of pods that is useful, if the workload may be admitted with fewer pods."""
    template: PodTemplate
    """The pod template: labels and annotations of its metadata, and its spec."""
    topology_request: TopologyRequest | None = None
    """Which domain the pods should share."""

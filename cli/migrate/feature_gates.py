"""Feature gates of Kueue 0.19.2 (pkg/features/kube_features.go): what Topogate does where one is set."""

from collections.abc import Mapping
from typing import Final

from cli.migrate.rows import TAKEN, FieldVerdict, changed, left, refused

_PROCESS: Final = left("how Kueue's own process works; no quota, order or place depends on it")
_CLUSTERS: Final = left("about several clusters, which no Topogate serves")
_ALWAYS: Final = left("Topogate always does so")
_ELSEWHERE: Final = left("what the objects that use it ask for has rows of its own")
_SCORE: Final = refused(
    "Topogate chooses among domains by its own rule, the fewest and fullest that fit", "see docs/concepts.md"
)
_LOST: Final = changed("lost nodes are replaced by Topogate's own rules (docs/changes.md)")
_SPEC: Final = "what the objects say counts: leave out there what the gate turned off"

# What is only about the process or other clusters, whatever its value is.
_BY_NAME: Final[Mapping[str, FieldVerdict]] = {
    **dict.fromkeys(
        (
            *("VisibilityOnDemand", "LocalQueueMetrics", "CustomMetricLabels", "MetricsForCohorts", "TLSOptions"),
            *("MetricForWorkloadCreationLatency", "ShortWorkloadNames", "WorkloadRequestUseMergePatch"),
            *("RemoveFinalizersWithStrictPatch", "SchedulingEquivalenceHashing", "SchedulerLongRequeueInterval"),
            *("SchedulerTimestampPreemptionBuffer", "FinishOrphanedWorkloads", "WorkloadIdentifierAnnotations"),
            *("PropagateBatchJobLabelsToWorkload", "SkipFinalizersForPodsSuspendedByParent", "TASCacheTopologyTree"),
            *("TASAssignmentsEncodingByHostnamePrefix", "TASCacheNodeMatchResults", "TASCachingRemainingResources"),
            *("SchedulerLibraryIntegration", "VectorizedResourceRequests", "WorkloadValidateResourcesAreNonNegative"),
            *("UnadmittedWorkloadsObservability", "UnadmittedWorkloadsExplicitStatus", "LWSImmutableGroupSize"),
            *("SkipAncestorCheckForDeletedWorkloads", "RejectUpdatesToCQWithInvalidOnFlavors"),
            *("WorkloadValidationForPodSetMetadata", "ValidateRayAndSparkJobUpdates", "TASValidateWorkloadSliceSize"),
            *("DeferRayServiceFinalizationForRedisCleanup", "CleanupProvisioningRequestsOnEviction"),
            *("PodIntegrationValidateGroupOwner", "SkipReassignmentForPodOwnedWorkloads"),
            *("TASRecomputeAssignmentWithinSchedulingCycle", "RecomputeAssignmentUponPreemptionTargetsOverlap"),
            *("FlavorFungibilityPreserveScanProgress", "FastQuotaReleaseInPodIntegration"),
        ),
        _PROCESS,
    ),
    **dict.fromkeys(
        (
            *("MultiKueue", "MultiKueueAdaptersForCustomJobs", "MultiKueueAllowInsecureKubeconfigs"),
            *("MultiKueueKubeConfigPathValidation", "MultiKueueClusterProfile", "MultiKueueWaitForWorkloadAdmitted"),
            *("MultiKueueRedoAdmissionOnEvictionInWorker", "MultiKueueOrchestratedPreemption"),
            *("MultiKueueIncrementalDispatcherConfig", "MultiKueueIncrementalDispatcherRespectConfigOrder"),
            *("MultiKueueManagerQuotaAutomation", "MultiKueueRemoteSpecSync"),
        ),
        _CLUSTERS,
    ),
    **dict.fromkeys(
        (
            *("TASFailedNodeReplacement", "TASFailedNodeReplacementFailFast", "TASReplaceNodeOnPodTermination"),
            *("TASReplaceNodeDueToNotReadyOverFixedTime", "TASReplaceNodeOnNodeTaints", "FailureRecoveryPolicy"),
        ),
        _LOST,
    ),
    # These change which of several domains is taken, and no quota.
    **dict.fromkeys(("TASProfileMixed", "TASBalancedPlacement", "TASRespectNodeAffinityPreferred"), _SCORE),
    **dict.fromkeys(
        (
            *("QuotaCheckStrategy", "AdmissionGatedBy", "KueueDRAIntegration", "KueueDRAIntegrationExtendedResource"),
            *("KueueDRAIntegrationPartitionableDevices", "KueueDRAIntegrationConsumableCapacity", "PriorityBoost"),
            *("KueueDRARejectWorkloadsWhenDRADisabled", "ConcurrentAdmission", "SparkApplicationIntegration"),
            *("ElasticJobsViaWorkloadSlices", "ElasticJobsViaWorkloadSlicesWithTAS", "WorkloadPriorityClassDefaulting"),
            *("AssignQueueLabelsForPods", "TASMultiLayerTopology", "PreemptionProtection"),
        ),
        _ELSEWHERE,
    ),
}
# What Kueue does by default and Topogate always: turned off, it is missed.
_ALWAYS_ON: Final[Mapping[str, str]] = {
    "PartialAdmission": "jobs with job-min-parallelism may be admitted with fewer pods",
    "FlavorFungibility": "flavors are tried as spec.flavorFungibility says",
    "PrioritySortingWithinCohort": "the priority decides the order of turns in a cohort",
    "FairSharingPreemptWithinNominal": "a queue within its nominal quota takes it back without comparing shares",
    "FairSharingPrioritizeNonBorrowing": "a queue that does not borrow has its turn first",
    "TopologyAwareScheduling": "flavors with a topology are placed by it",
    "HierarchicalCohorts": "cohorts have parents",
    "AdmissionFairSharing": "admissionScope and weights of LocalQueues count",
    "ObjectRetentionPolicies": "objectRetentionPolicies count",
    "ReclaimablePods": "what pods that succeeded held is free at once",
    "TASHandleOverlappingFlavors": "a node in several flavors is counted once",
    "ManagedJobsNamespaceSelectorAlwaysRespected": "namespaceSelector of each ClusterQueue counts",
}
_NEVER_ON: Final[Mapping[str, str]] = {
    "PrioritizePreemptorWorkloads": "a workload that preempts keeps its place in the queue, and gets no better one",
}
NO_TIMEOUT: Final = "DisableWaitForPodsReady"


def judge_gate(name: str, value: object) -> FieldVerdict:
    """What becomes of a gate that is set."""
    if not isinstance(value, bool):
        return refused(f"expected true or false, found {str(value)[:60]!r}", "correct the Configuration")
    # What it turns off has a row of its own, by its absence.
    if name == NO_TIMEOUT:
        return TAKEN if value else left("waitForPodsReady says how long")
    if name in _ALWAYS_ON:
        return _ALWAYS if value else refused(f"Topogate always does so: {_ALWAYS_ON[name]}", _SPEC)
    if name in _NEVER_ON:
        return (
            refused(f"Topogate never does so: {_NEVER_ON[name]}", "see docs/queues.md for the order")
            if value
            else left("Topogate does not either")
        )
    return _BY_NAME.get(name) or refused(
        "topogate does not know the gate (it knows those of Kueue 0.19)", "see Kueue's documentation for what it does"
    )

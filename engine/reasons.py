"""The closed set of reasons, used alike in conditions, events, metrics and command output."""

from enum import StrEnum


class Reason(StrEnum):
    """Why something was decided. The values are the API's words: never rename one that was released."""

    # A workload moves on.
    ADMITTED = "Admitted"
    QUOTA_RESERVED = "QuotaReserved"
    PODS_READY = "PodsReady"
    FINISHED = "Finished"
    REPLACED = "Replaced"
    RESIZED = "Resized"
    MOVED = "Moved"  # its pods are where they were to go

    # A workload that runs is moved.
    TOGETHER = "PullTogether"  # it prefers a level and was spread
    REALIGNED = "Realign"  # a pod did not get the alignment that it asks for
    ROOM_MADE = "MakeRoom"  # one that waits for long needs its domain
    DEFRAGMENTED = "Defrag"  # an administrator said so
    NOTHING_TO_MOVE = "NothingToMove"
    MOVES_USED_UP = "MovesUsedUp"  # no more of them this hour

    # A workload waits.
    PENDING = "Pending"
    NO_FLAVOR = "NoFlavor"  # no flavor's levels contain the requested one
    NO_NODES = "NoNodes"  # the flavor selects no node that carries every level label
    DOES_NOT_FIT = "DoesNotFit"  # it would fit the emptied flavor, not what is free now
    NUMA_ALIGNMENT = "NumaAlignment"  # it would fit by amounts, but kubelets would refuse pods inside their nodes now
    NEVER_FITS = "NeverFits"  # not even the emptied flavor could take it
    ZONES_UNKNOWN = "ZonesUnknown"  # its pods ask for NUMA zones or GPU links, and no node publishes any
    PODS_NOT_READY = "PodsNotReady"
    WAIT_FOR_START = "WaitForStart"
    WRITE_FAILED = "WriteFailed"
    SUSPENDED = "Suspended"  # the job is suspended: it holds nothing
    PARTLY_PLACED = "PartlyPlaced"  # it was scaled up, and there is no room for the difference
    WAITS_FOR_ARRIVALS = "WaitsForArrivals"  # pods on their way to a node come first: their kubelet might refuse one
    SLOT_OCCUPIED = "SlotOccupied"  # a pod that terminates still holds the slot of its replacement
    VOLUME_NOT_READY = "VolumeNotReady"  # a claim is not there, not bound yet, lost, on its way out or in use
    RESOURCE_CLAIMS_NOT_COUNTED = "ResourceClaimsNotCounted"  # its pods ask for devices that no count here knows

    ASKS_FOR_MORE = "AsksForMore"  # a pod asks for more than its workload was admitted with
    PODS_DIFFER = "PodsDiffer"  # its pods are made otherwise than it was decided for, so it is decided again
    PODS_CHANGE = "PodsChange"  # they are made otherwise each time, or differ from each other
    OTHER_QUEUE = "OtherQueue"  # a pod names another queue than the one that its workload was admitted in

    # A request is refused.
    INVALID_REQUEST = "InvalidRequest"
    TOO_LARGE = "TooLarge"  # its pod template asks for more things than are taken into account
    UNKNOWN_LEVEL = "UnknownLevel"
    CONTRADICTING_REQUESTS = "ContradictingRequests"
    UNKNOWN_PRIORITY_CLASS = "UnknownPriorityClass"  # the label names none that counts for the workload
    UNSUPPORTED_CONSTRAINT = "UnsupportedConstraint"  # an (anti-)affinity or spread constraint the count cannot honour
    OWNER_MISMATCH = "OwnerMismatch"  # a pod names a workload that is not its owner's
    UNSUPPORTED_OWNER = "UnsupportedOwner"  # a gated pod whose owner is no job that is served
    NOT_GATED = "NotGated"  # a request without the gate: made while the webhook was away
    INTERNAL_ERROR = "InternalError"  # the controller could not handle it, and others go on
    UNGATE_FAILED = "UngateFailed"  # the API server refuses the patch that would let the pod go
    NODE_DELETED = "NodeDeleted"
    SLOT_MOVED = "SlotMoved"  # a pod was ungated to a place that is no longer its slot

    # A pod that was let go does not run.
    SCHEDULER_REFUSED = "SchedulerRefused"  # kube-scheduler does not take it to the node of its slot
    NOT_SCHEDULED = "NotScheduled"  # no scheduler has looked at it
    NOT_STARTED = "NotStarted"  # it is bound, and its volumes, devices or containers are not ready
    NODE_LEFT_OUT = "NodeLeftOut"  # pod after pod did not run on a node

    # A kubelet did otherwise than was predicted, or what a node publishes of its inside cannot be used as it is.
    KUBELET_REFUSED = "KubeletRefused"  # it refused a pod that was sent to its node
    MISALIGNED = "Misaligned"  # a pod got other NUMA zones than predicted
    ZONES_UNREPORTED = "ZonesUnreported"  # a kubelet aligns what its node tells no zones of
    MACHINE_DATA_INVALID = "MachineDataInvalid"
    MACHINE_DATA_DISAGREES = "MachineDataDisagrees"  # between two sources
    MACHINE_DATA_VALID = "MachineDataValid"  # again

    # A node takes no pods of a pod set.
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_TAINTED = "NodeTainted"
    NODE_SELECTOR = "NodeSelector"
    NODE_AFFINITY = "NodeAffinity"
    NODE_FEATURES = "NodeDeclaredFeatures"  # its kubelet does not declare what the pods use
    CLAIM_NODE_AFFINITY = "ClaimNodeAffinity"  # the devices that a claim of the pods has are not reached from it
    OTHER_COMPUTE_DOMAIN = "OtherComputeDomain"  # it belongs to another one than the channels that the pods ask for
    VOLUME_NODE_AFFINITY = "VolumeNodeAffinity"  # a volume of the pods does not reach it
    POD_AFFINITY = "PodAffinity"
    POD_ANTI_AFFINITY = "PodAntiAffinity"
    HOST_PORTS = "HostPorts"  # another pod has a port of the host that the pods ask for, or one of them would
    TOPOLOGY_SPREAD = "TopologySpread"
    MISSING_LEVEL_LABEL = "MissingLevelLabel"
    UNEVEN_DOMAINS = "UnevenDomains"  # of a level of spine switches: a cable between switches may be dead
    LABELS_SUPERSEDED = "LabelsSuperseded"  # the tool that wrote the label of a level writes another one by now
    LABELS_CHANGED = "LabelsChanged"  # of nodes, under pods that were placed by the old ones
    INSUFFICIENT_RESOURCE = "InsufficientResource"
    INSUFFICIENT_DEVICES = "InsufficientDevices"  # the claims of a pod get none there, beside those that are promised
    SLICES = "SlicesDoNotFit"  # the pods of a domain would fit one by one, but not in whole slices

    # The agent says of a machine.
    READY = "Ready"  # the kubelet's state is known exactly
    STATE_INCOMPLETE = "StateIncomplete"  # a part of it could not be read; the message names it
    GPU_FAULTY = "GpuFaulty"
    GPU_RECOVERED = "GpuRecovered"

    # A workload waits in a queue.
    QUEUE_REQUIRED = "QueueRequired"  # it names none, and the setting requireQueue makes one compulsory
    NO_QUEUE = "NoQueue"  # no such LocalQueue, or its ClusterQueue is missing
    QUEUE_STOPPED = "QueueStopped"
    NAMESPACE_NOT_SELECTED = "NamespaceNotSelected"
    NO_QUOTA = "NoQuota"  # the cluster queue has no quota at all for a resource that is asked for
    EXCEEDS_QUOTA = "ExceedsQuota"  # more than the queue may ever use
    INSUFFICIENT_QUOTA = "InsufficientQuota"  # more than is left now
    BEHIND_OTHERS = "BehindOthers"  # quota or room is kept for one that came first
    PREEMPTING = "Preempting"  # its victims are on their way out
    CLAIMS_NOT_DEALLOCATED = "ClaimsNotDeallocated"  # they are gone, and claims that they had still have devices
    BACKING_OFF = "BackingOff"  # evicted, and not back in the queue yet

    # A workload is evicted, or made inactive.
    EVICTED = "Evicted"  # one pod of it, by the Eviction API
    EVICTION_BLOCKED = "EvictionBlocked"  # a PodDisruptionBudget refuses
    PREEMPTED = "Preempted"
    IN_CLUSTER_QUEUE = "InClusterQueue"  # by a workload of its own queue
    RECLAIMED = "InCohortReclamation"  # by a queue of the cohort that took its quota back
    RECLAIMED_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    FAIR_SHARING = "InCohortFairSharing"
    OUTSIDE_QUEUES = "OutsideQueues"  # a pod that no queue admitted
    PODS_READY_TIMEOUT = "PodsReadyTimeout"
    REPLACEMENT_TIMEOUT = "ReplacementTimeout"  # a lost node's pods found no other place in time
    POD_GROUP_HELD = "PodGroupHeld"  # pods with a place were held back for others of their PodGroup, which have none
    PODS_MISSING = "PodsMissing"  # nobody made the pods that something was held for
    CHECK_REJECTED = "AdmissionCheckRejected"
    CHECK_RETRY = "AdmissionCheckRetry"
    QUEUE_DRAINED = "QueueDrained"  # stopPolicy HoldAndDrain
    DEACTIVATED = "Deactivated"  # spec.active is false
    REQUEUE_LIMIT = "RequeuingLimitExceeded"
    MAXIMUM_EXECUTION_TIME = "MaximumExecutionTimeExceeded"
    REQUEUED = "Requeued"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    # The ungater says of its settings.
    SETTINGS_CHANGED = "SettingsChanged"  # it goes by others now, or will after a restart
    SETTINGS_REFUSED = "SettingsRefused"  # they are wrong, and the last good ones count

    # The webhook says of its Secret.
    CERTIFICATES_ROTATED = "CertificatesRotated"
    CERTIFICATES_REPAIRED = "CertificatesRepaired"  # what it held could not be used

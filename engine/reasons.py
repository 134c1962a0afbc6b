"""The closed set of reasons, used alike in conditions, events, metrics and command output.

What follows from a reason stands in its row: other modules ask `Reason.traits`, or `traits_of` where the reason is a
word that was read. The page has a list of its own (``NEVER`` in web/page/src/model.ts), which a test compares.
"""

from enum import Enum, StrEnum
from typing import Final, NamedTuple, Self


class Short(Enum):
    """What there is too little of."""

    ROOM = "room"
    QUOTA = "quota"


class Cure(Enum):
    """What ends a wait."""

    OTHERS = "others"  # that leave, or are evicted
    CLUSTER = "cluster"  # a change of its nodes, flavors or queues
    REQUEST = "request"  # another one: the job must be made again


class ReasonTraits(NamedTuple):
    """What follows from a reason; nothing but that it is told, where its row has none.

    ``gravity``: of the refusals of several options, the one with the least is told, as it is closest to an admission.
    """

    gravity: int = 99
    short: Short | None = None
    cure: Cure | None = None
    passing: bool = False  # of a node filter: it may let a node in again by itself
    # Of a node filter: what the pods bring along keeps them off, and such nodes have other limits too.
    attached: bool = False
    one_a_value: bool = False  # of a cap: one pod a value of its key
    stuck: bool = False  # of PodsReady: `ungater.reconcile.pods_ready` replaces it once it holds no more
    ordinary: bool = False  # of PodsReady: nothing is amiss, pods are just not all ready, yet or again
    of_itself: bool = False  # its message is of the workload itself, its queue and the flavors, and names nobody else

    @property
    def hopeless(self) -> bool:
        """Whatever becomes free, it does not go away by waiting."""
        return self.cure in {Cure.CLUSTER, Cure.REQUEST}


TOLD: Final = ReasonTraits()


class Reason(StrEnum):
    """Why something was decided. The values are the API's words: never rename one that was released."""

    traits: ReasonTraits

    def __new__(cls, word: str, traits: ReasonTraits = TOLD) -> Self:
        """A row: the word, and what follows from it."""
        made = str.__new__(cls, word)
        made._value_ = word
        made.traits = traits
        return made

    # A workload moves on.
    ADMITTED = "Admitted", ReasonTraits(of_itself=True)
    QUOTA_RESERVED = "QuotaReserved"
    ADOPTED = "Adopted"  # Kueue started it, and what it has is held here from now on
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
    # No flavor's levels contain the requested one.
    NO_FLAVOR = "NoFlavor", ReasonTraits(gravity=17, cure=Cure.CLUSTER, of_itself=True)
    # The flavor selects no node that carries every level label.
    NO_NODES = "NoNodes", ReasonTraits(gravity=15, cure=Cure.CLUSTER)
    # It would fit the emptied flavor, not what is free now.
    DOES_NOT_FIT = "DoesNotFit", ReasonTraits(gravity=11, short=Short.ROOM, cure=Cure.OTHERS)
    # It would fit by amounts, but kubelets would refuse pods inside their nodes now.
    NUMA_ALIGNMENT = "NumaAlignment", ReasonTraits(gravity=10, short=Short.ROOM, cure=Cure.OTHERS)
    # Not even the emptied flavor could take it.
    NEVER_FITS = "NeverFits", ReasonTraits(gravity=13, short=Short.ROOM, cure=Cure.CLUSTER)
    # Its pods ask for NUMA zones or GPU links, and no node publishes any.
    ZONES_UNKNOWN = "ZonesUnknown", ReasonTraits(gravity=14, short=Short.ROOM, cure=Cure.CLUSTER, of_itself=True)
    PODS_NOT_READY = "PodsNotReady", ReasonTraits(ordinary=True)
    WAIT_FOR_START = "WaitForStart", ReasonTraits(ordinary=True)
    WRITE_FAILED = "WriteFailed"
    SUSPENDED = "Suspended", ReasonTraits(ordinary=True, of_itself=True)  # the job is suspended: it holds nothing
    # It was scaled up, and there is no room for the difference.
    PARTLY_PLACED = "PartlyPlaced", ReasonTraits(stuck=True)
    # Pods on their way to a node come first: their kubelet might refuse one.
    WAITS_FOR_ARRIVALS = "WaitsForArrivals", ReasonTraits(stuck=True)
    # A pod that terminates still holds the slot of its replacement.
    SLOT_OCCUPIED = "SlotOccupied", ReasonTraits(stuck=True)
    NOT_ADOPTED = "NotAdopted"  # Kueue started it, and what it has cannot be held: it is left running
    VOLUME_NOT_READY = "VolumeNotReady"  # a claim is not there, not bound yet, lost, on its way out or in use
    # Its pods ask for devices that no count here knows.
    RESOURCE_CLAIMS_NOT_COUNTED = "ResourceClaimsNotCounted", ReasonTraits(of_itself=True)

    ASKS_FOR_MORE = "AsksForMore", ReasonTraits(stuck=True)  # a pod asks for more than its workload was admitted with
    PODS_DIFFER = "PodsDiffer"  # its pods are made otherwise than it was decided for, so it is decided again
    PODS_CHANGE = "PodsChange"  # they are made otherwise each time, or differ from each other
    # A pod names another queue than the one that its workload was admitted in.
    OTHER_QUEUE = "OtherQueue", ReasonTraits(stuck=True)

    # A request is refused.
    INVALID_REQUEST = "InvalidRequest", ReasonTraits(gravity=18, cure=Cure.REQUEST, of_itself=True)
    # Its pod template asks for more things than are taken into account.
    TOO_LARGE = "TooLarge", ReasonTraits(of_itself=True)
    UNKNOWN_LEVEL = "UnknownLevel", ReasonTraits(gravity=16, cure=Cure.CLUSTER, of_itself=True)
    CONTRADICTING_REQUESTS = "ContradictingRequests", ReasonTraits(cure=Cure.REQUEST, of_itself=True)
    # The label names none that counts for the workload.
    UNKNOWN_PRIORITY_CLASS = "UnknownPriorityClass", ReasonTraits(of_itself=True)
    # An (anti-)affinity or spread constraint the count cannot honour.
    UNSUPPORTED_CONSTRAINT = "UnsupportedConstraint", ReasonTraits(gravity=12, cure=Cure.OTHERS, of_itself=True)
    OWNER_MISMATCH = "OwnerMismatch"  # a pod names a workload that is not its owner's
    # A gated pod whose owner is no job that is served.
    UNSUPPORTED_OWNER = "UnsupportedOwner", ReasonTraits(cure=Cure.REQUEST, of_itself=True)
    # A request without the gate: made while the webhook was away.
    NOT_GATED = "NotGated", ReasonTraits(cure=Cure.REQUEST)
    INTERNAL_ERROR = "InternalError"  # the controller could not handle it, and others go on
    UNGATE_FAILED = "UngateFailed"  # the API server refuses the patch that would let the pod go
    NODE_DELETED = "NodeDeleted"
    SLOT_MOVED = "SlotMoved"  # a pod was ungated to a place that is no longer its slot

    # A pod that was let go does not run.
    # kube-scheduler does not take it to the node of its slot.
    SCHEDULER_REFUSED = "SchedulerRefused", ReasonTraits(stuck=True)
    NOT_SCHEDULED = "NotScheduled", ReasonTraits(stuck=True)  # no scheduler has looked at it
    # It is bound, and its volumes, devices or containers are not ready.
    NOT_STARTED = "NotStarted", ReasonTraits(stuck=True)
    NODE_LEFT_OUT = "NodeLeftOut"  # pod after pod did not run on a node

    # A kubelet did otherwise than was predicted, or what a node publishes of its inside cannot be used as it is.
    KUBELET_REFUSED = "KubeletRefused"  # it refused a pod that was sent to its node
    MISALIGNED = "Misaligned"  # a pod got other NUMA zones than predicted
    ZONES_UNREPORTED = "ZonesUnreported"  # a kubelet aligns what its node tells no zones of
    MACHINE_DATA_INVALID = "MachineDataInvalid"
    MACHINE_DATA_DISAGREES = "MachineDataDisagrees"  # between two sources
    MACHINE_DATA_VALID = "MachineDataValid"  # again

    # A node takes no pods of a pod set.
    NODE_NOT_READY = "NodeNotReady", ReasonTraits(passing=True)
    NODE_UNSCHEDULABLE = "NodeUnschedulable", ReasonTraits(passing=True)
    NODE_TAINTED = "NodeTainted"
    NODE_SELECTOR = "NodeSelector"
    NODE_AFFINITY = "NodeAffinity"
    NODE_FEATURES = "NodeDeclaredFeatures"  # its kubelet does not declare what the pods use
    # The devices that a claim of the pods has are not reached from it.
    CLAIM_NODE_AFFINITY = "ClaimNodeAffinity", ReasonTraits(attached=True)
    # It belongs to another one than the channels that the pods ask for.
    OTHER_COMPUTE_DOMAIN = "OtherComputeDomain", ReasonTraits(passing=True)
    VOLUME_NODE_AFFINITY = "VolumeNodeAffinity", ReasonTraits(attached=True)  # a volume of the pods does not reach it
    POD_AFFINITY = "PodAffinity"
    POD_ANTI_AFFINITY = "PodAntiAffinity", ReasonTraits(one_a_value=True)
    # Another pod has a port of the host that the pods ask for, or one of them would.
    HOST_PORTS = "HostPorts", ReasonTraits(one_a_value=True)
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
    # It names none, and the setting requireQueue makes one compulsory.
    QUEUE_REQUIRED = "QueueRequired", ReasonTraits(of_itself=True)
    NO_QUEUE = "NoQueue", ReasonTraits(of_itself=True)  # no such LocalQueue, or its ClusterQueue is missing
    QUEUE_STOPPED = "QueueStopped", ReasonTraits(of_itself=True)
    NAMESPACE_NOT_SELECTED = "NamespaceNotSelected", ReasonTraits(of_itself=True)
    # The cluster queue has no quota at all for a resource that is asked for.
    NO_QUOTA = "NoQuota", ReasonTraits(gravity=101, cure=Cure.CLUSTER, of_itself=True)
    # More than the queue may ever use.
    EXCEEDS_QUOTA = "ExceedsQuota", ReasonTraits(gravity=100, short=Short.QUOTA, cure=Cure.CLUSTER)
    # More than is left now.
    INSUFFICIENT_QUOTA = "InsufficientQuota", ReasonTraits(gravity=1, short=Short.QUOTA, cure=Cure.OTHERS)
    BEHIND_OTHERS = "BehindOthers", ReasonTraits(gravity=0)  # quota or room is kept for one that came first
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
    PODS_MISSING = "PodsMissing", ReasonTraits(stuck=True)  # nobody made the pods that something was held for
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


_ROWS: Final = {reason.value: reason.traits for reason in Reason}


def traits_of(word: str) -> ReasonTraits:
    """What follows from a reason that was read, which may be the word of another controller."""
    return _ROWS.get(word, TOLD)

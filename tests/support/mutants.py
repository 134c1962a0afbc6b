"""Mutated objects of every kind that the controller reads: what the API server lets through, and nothing else.

The same seed and number make the same object. Kinds with a schema in the API server (its own, and Topogate's CRDs) have
fields of the right types, with any value and size that is stored; `tests/integration/test_stored_values.py` says what
that is. Kinds of others (JobSet, LeaderWorkerSet, NodeResourceTopology, Kubeflow's and Ray's) may also come without
their CRD's schema, and then with any type anywhere but in their metadata. Kueue's own, which are watched beside Kueue
alone, are left out.
"""

import json
import random
from dataclasses import dataclass
from functools import lru_cache, partial

import msgspec
from support.mutations import moved, removed, renamed, replaced, wrapped

from crds import constants
from crds.names import workload_name
from kube import replicas, resources
from kube.resources import Resource
from ungater.jobs import leaderworkerset

KEYS = constants.Keys()
NAMESPACES = ("wild", "wild", "wild", "wild-2")
POOL, BLOCK, RACK, HOST = "pool", "cloud/block", "cloud/rack", constants.HOSTNAME_LABEL
LEVELS = (BLOCK, RACK, HOST)
NODES = tuple(f"wild-{number}" for number in range(4))  # that are there whatever else is
QUEUE = "wild"  # a LocalQueue of each namespace, a ClusterQueue and a flavor that are there
TREE = tuple(f"tree-{number}" for number in range(6))
BORN = "2026-11-21T00:00:00Z"
OPERATORS_KINDS = tuple(newest for newest, _ in replicas.REPLICATED if newest not in replicas.SERVICES)
KINDS = {
    resources.JOBS: 18,
    resources.PODS: 30,
    resources.JOB_SETS: 10,
    resources.LEADER_WORKER_SETS: 7,
    resources.NODES: 8,
    resources.NODE_RESOURCE_TOPOLOGIES: 6,
    resources.FLEX_TOPOS: 4,
    resources.WORKLOADS: 6,
    resources.CLUSTER_QUEUES: 4,
    resources.LOCAL_QUEUES: 2,
    resources.RESOURCE_FLAVORS: 2,
    resources.PRIORITY_CLASSES: 1,
    resources.WORKLOAD_PRIORITY_CLASSES: 1,
    resources.POD_DISRUPTION_BUDGETS: 1,
    resources.NAMESPACES: 1,
    resources.LIMIT_RANGES: 1,
    resources.RUNTIME_CLASSES: 1,
    resources.PERSISTENT_VOLUME_CLAIMS: 6,
    resources.PERSISTENT_VOLUMES: 5,
    resources.STORAGE_CLASSES: 2,
    resources.CSI_NODES: 2,
    resources.DEVICE_CLASSES: 2,
    resources.DEVICE_TAINT_RULES: 1,
    resources.RESOURCE_SLICES: 3,
    resources.CLAIM_TEMPLATES: 3,
    resources.RESOURCE_CLAIMS: 3,
    resources.POD_GROUPS: 3,
    resources.STATEFUL_SETS: 3,
    resources.REPLICA_SETS: 3,
    resources.CONTROLLER_REVISIONS: 2,
    resources.CSI_DRIVERS: 1,
    resources.CSI_STORAGE_CAPACITIES: 2,
    resources.COHORTS: 3,
    **dict.fromkeys(OPERATORS_KINDS, 1),
}
TENANTS = (
    *(resources.JOBS, resources.PODS, resources.JOB_SETS, resources.LEADER_WORKER_SETS, resources.WORKLOADS),
    *(resources.LOCAL_QUEUES, resources.POD_DISRUPTION_BUDGETS, resources.PERSISTENT_VOLUME_CLAIMS),
    *(resources.CLAIM_TEMPLATES, resources.POD_GROUPS),
    *(resources.STATEFUL_SETS, resources.REPLICA_SETS, resources.CONTROLLER_REVISIONS, *OPERATORS_KINDS),
)
BLOCK_OF = 480  # numbers; in every other block are objects that tenants may make, and no others
STORED = 1_500_000  # bytes of an object that etcd takes
FOREIGN = frozenset(
    {resources.JOB_SETS, resources.LEADER_WORKER_SETS, resources.NODE_RESOURCE_TOPOLOGIES, *OPERATORS_KINDS}
)

MOST = 2**31 - 1
COUNTS = (0, 1, 1, 2, 2, 3, 4, 8, 16, 100, 1000, 100_000, 20_000_000, MOST)
NUMBERS = (-(2**63), -(2**31), -1, *COUNTS, 2**31, 2**53, 2**63 - 1)
QUANTITIES = (
    *("0", "1", "1", "1", "2", "2", "4", "100m", "500m", "1Gi", "64Gi", "1k", "1.5", "1n", "1u", "0.000000001", "1e3"),
    *("-1", "-9223372036854775808", "9223372036854775807", "9223372036854775", "9223372036854775808", "1Ei", "8Ei"),
    *("1E9999", "1e9999", "1e-9999", "1E", "9e18", "12e6", "0.1m", ".5", "5.", "+1", "+.5e+1", "123456789012345678901"),
    *("9" * 64, "0." + "0" * 61 + "1", "1e18", "999999999999999999999999999999999999999999999Ei", "0e0", "00", "-0"),
)
NAMES = ("cpu", "cpu", "cpu", "memory", "memory", "pods", "nvidia.com/gpu", "nvidia.com/gpu", "ephemeral-storage")
RARE_NAMES = (
    *("hugepages-2Mi", "hugepages-1Gi", "example.com/x", "kunlunxin.com/xpu", "a.b/" + "c" * 63, "requests.cpu"),
    "deviceclass.resource.kubernetes.io/",
)
LABELS = (
    *(
        "",
        "0",
        "1",
        "2",
        "3",
        "main",
        "true",
        "x",
        "9" * 63,
        "0" * 63,
        "007",
        "1_0",
        "1.5",
        "1e9",
        "2147483648",
        "A" * 63,
    ),
    *("leader", "workers", "Worker", "head", "team-a.b_c", "wild", "nosuch", *NODES),
)
LAYERS = json.dumps([{"topology": BLOCK, "size": 4}, {"topology": RACK, "size": 2}])
PLACEMENT = json.dumps([{"zone": "node-0", "amount": {"cpu": "1", "nvidia.com/gpu": "1"}, "devices": {}}])
TEXTS = (
    *(
        "",
        "0",
        "1",
        "2",
        "3",
        "4",
        "-1",
        "true",
        "false",
        "auto",
        "main",
        "x",
        "1.5",
        "1e9",
        "1e309",
        "NaN",
        "null",
        "[]",
    ),
    *(str(MOST), str(2**31), str(2**63), "9" * 20, "+1", " 1", "1 ", "1_0", "0x10", "\u0661\u0662", "\u00b2", "\u0967"),
    *(
        "\u0000",
        "\u2028",
        "\ufeff1",
        "\U0001f980" * 20,
        "\u202e1",
        "a\nb",
        "\ufffd",
        "e\u0301",
        "\U0010ffff",
        "'\"\\`$(x)%s{}",
    ),
    *(
        "restricted",
        "single-numa-node",
        "best-effort",
        "require",
        "prefer",
        "guaranteed",
        "LS",
        "cpu,memory",
        ",,",
        "slice",
    ),
    *(LAYERS, PLACEMENT, PLACEMENT.replace('"1"', '"1E9999"'), PLACEMENT.replace('"1"', '"9223372036854775807"')),
    *(PLACEMENT.replace("node-0", "node-4095"), PLACEMENT.replace('"1"', "1e400"), PLACEMENT.replace('"1"', "-1")),
    *(
        '{"clusterQueue":"wild","flavors":{"cpu":"wild"}}',
        '{"clusterQueue":"","flavors":{"":""}}',
        '{"clusterQueue":1}',
    ),
    *(
        '[{"topology":"cloud/rack","size":1e400}]',
        '[{"topology":"cloud/rack","size":9223372036854775808}]',
        '{"a":' * 90,
    ),
)
LONG_TEXTS = (
    "1" * 5000,
    "x" * 5000,
    "[" * 5000,
    '{"a":' * 3000,
    "9" * 30_000,
    "a," * 5000,
    "\U0001f980" * 5000,
    " " * 9000,
)
LABEL_KEYS = (
    *(KEYS.queue_name, KEYS.queue_name, KEYS.priority_class, KEYS.max_execution, KEYS.pod_group, KEYS.pod_group),
    *(*constants.RANK_LABELS, f"{KEYS.domain}/{constants.POD_GROUP_INDEX}", constants.JOB_SET_ROLE),
    *(
        constants.JOB_SET_INDEX,
        "batch.kubernetes.io/job-name",
        leaderworkerset.NAME,
        leaderworkerset.GROUP,
        "app",
        POOL,
        BLOCK,
        RACK,
        HOST,
    ),
    *("training.kubeflow.org/replica-type", "ray.io/group", "k" * 63, "jobset.sigs.k8s.io/jobset-uid"),
)
ANNOTATION_KEYS = (
    *(*KEYS.required, *KEYS.preferred, KEYS.unconstrained, *KEYS.grouping, KEYS.min_parallelism, KEYS.pod_group_total),
    *(
        KEYS.pod_group_total,
        KEYS.role_hash,
        KEYS.workload,
        KEYS.pod_set,
        constants.NUMA_POLICY,
        constants.NUMA_RESOURCES,
    ),
    *(constants.GPU_LINK, constants.TOPOLOGY_QOS, constants.EVICT_BY, constants.NUMA_PLACEMENT_PREDICTED),
    *(constants.NUMA_PLACEMENT_OBSERVED, constants.ADMITTED_QUOTA, constants.GPU_STATES, constants.XPU_INDEXES),
    *(
        constants.COPY_OF,
        constants.HELD,
        constants.OWNER,
        "alpha.jobset.sigs.k8s.io/exclusive-topology",
        "leaderworkerset.sigs.k8s.io/exclusive-topology",
    ),
)
REQUESTS = (
    {KEYS.required[0]: RACK},
    {KEYS.required[0]: BLOCK},
    {KEYS.required[0]: HOST},
    {KEYS.preferred[0]: RACK},
    {KEYS.preferred[0]: "auto"},
    {KEYS.unconstrained: "true"},
    {KEYS.required[0]: BLOCK, KEYS.slice_level: RACK, KEYS.slice_size: "2"},
    {KEYS.required[1]: BLOCK, KEYS.slice_layers: LAYERS},
    {KEYS.required[0]: RACK, KEYS.group: "together"},
    {KEYS.required[0]: RACK, constants.NUMA_POLICY: "single-numa-node"},
    {KEYS.required[0]: HOST, constants.GPU_LINK: "require", constants.NUMA_RESOURCES: "cpu,nvidia.com/gpu"},
)
ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region")
DRIVERS = ("ebs.csi.aws.com", "kubernetes.io/aws-ebs", "kubernetes.io/no-provisioner", "d" * 300, "", "x/y", "wild")
MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


@dataclass(frozen=True)
class Mutant:
    """An object. ``foreign``: its types may be wrong, as nobody may have checked them."""

    resource: Resource
    body: dict
    foreign: bool = False


class Dice(random.Random):
    """What values are drawn of."""

    def one(self, *choices):
        return self.choice(choices)

    def maybe(self, share):
        return self.random() < share

    def count(self):
        return self.choice(COUNTS) if self.maybe(0.5) else self.randint(0, 4)

    def number(self):
        return self.choice(NUMBERS)

    def quantity(self):
        return self.choice(QUANTITIES) if self.maybe(0.5) else self.one("1", "1", "2", "500m", "1Gi")

    def loose_quantity(self):
        """As a CRD takes it that says no more than int or string."""
        return self.number() if self.maybe(0.3) else self.text() if self.maybe(0.1) else self.quantity()

    def label(self):
        return self.choice(LABELS)

    def text(self):
        return self.choice(LONG_TEXTS) if self.maybe(0.03) else self.choice(TEXTS)

    def many(self, few=3, most=200):
        """How many of something: rarely very many."""
        return self.randint(0, most) if self.maybe(0.01) else self.randint(0, few)


def of_tenants(number):
    """Whether the object of that number, and those around it, are a tenant's."""
    return number // BLOCK_OF % 2 == 1


@lru_cache(maxsize=4096)
def kind_of(seed, number):
    """The resource of the object of that number."""
    kinds = TENANTS if of_tenants(number) else tuple(KINDS)
    return Dice(f"{seed}/{number}/kind").choices(kinds, [KINDS[each] for each in kinds])[0]


def name_of(number):
    """The name that the object of that number mostly has."""
    return f"m{number}"


def uid_of(number):
    """The uid of the object of that number."""
    return f"uid-{number}"


def make(seed, number, version=0):
    """The object of that number; other versions are of the same kind and name, and mostly of the same uid."""
    resource, again = kind_of(seed, number), ""
    while True:
        made = _Maker(seed, number, f"{version}{again}", resource).make()
        if len(msgspec.json.encode(made.body)) <= STORED:
            return made
        again += "+"


class _Maker:
    def __init__(self, seed, number, version, resource):
        self.seed = seed
        self.number = number
        self.dice = Dice(f"{seed}/{number}/{version}")
        self.resource = resource
        self.namespace = Dice(f"{seed}/{number}/namespace").choice(NAMESPACES)

    def make(self):
        makers = {
            resources.JOBS: self.job,
            resources.PODS: self.pod,
            resources.JOB_SETS: self.jobset,
            resources.LEADER_WORKER_SETS: self.leaders,
            resources.NODES: self.node,
            resources.NODE_RESOURCE_TOPOLOGIES: self.topology,
            resources.FLEX_TOPOS: self.flex,
            resources.WORKLOADS: self.workload,
            resources.COHORTS: self.cohort,
            resources.CLUSTER_QUEUES: self.cluster_queue,
            resources.LOCAL_QUEUES: lambda: {"spec": self.local_queue()},
            resources.RESOURCE_FLAVORS: lambda: {"spec": self.flavor()},
            resources.PRIORITY_CLASSES: self.priority_class,
            resources.WORKLOAD_PRIORITY_CLASSES: self.workload_class,
            resources.POD_DISRUPTION_BUDGETS: self.budget,
            resources.NAMESPACES: dict,
            resources.LIMIT_RANGES: self.limit_range,
            resources.RUNTIME_CLASSES: self.runtime_class,
            resources.PERSISTENT_VOLUME_CLAIMS: self.claim,
            resources.PERSISTENT_VOLUMES: self.volume,
            resources.STORAGE_CLASSES: self.storage_class,
            resources.CSI_NODES: self.csi_node,
            resources.DEVICE_CLASSES: self.device_class,
            resources.DEVICE_TAINT_RULES: self.taint_rule,
            resources.RESOURCE_SLICES: self.resource_slice,
            resources.CLAIM_TEMPLATES: lambda: {"spec": {"spec": self.asked_devices()}},
            resources.RESOURCE_CLAIMS: self.resource_claim,
            resources.POD_GROUPS: lambda: {"spec": self.group_terms()},
            resources.STATEFUL_SETS: self.stateful_set,
            resources.REPLICA_SETS: self.replica_set,
            resources.CONTROLLER_REVISIONS: self.revision,
            resources.CSI_DRIVERS: self.csi_driver,
            resources.CSI_STORAGE_CAPACITIES: self.storage_capacity,
            **dict.fromkeys(OPERATORS_KINDS, self.training_job),
            replicas.RAY_CLUSTERS: self.ray_cluster,
        }
        dice = self.dice
        body = makers[self.resource]()
        name, owners = body.pop("name", name_of(self.number)), body.pop("owners", ())
        more = body.pop("labels", {}), body.pop("annotations", {})
        foreign = self.resource in FOREIGN and dice.maybe(0.3)
        if foreign:
            body = self.retyped(body)
        meta = {
            "name": name,
            "uid": uid_of(self.number) + ("-again" if dice.maybe(0.1) else ""),
            "labels": {**self.labels(), **more[0]},
            "annotations": {**self.annotations(), **more[1]},
            "creationTimestamp": dice.one(
                BORN, BORN, BORN, "2026-11-20T23:59:59Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"
            ),
        }
        if self.resource.namespaced:
            meta["namespace"] = self.namespace
        if owners or dice.maybe(0.03):
            meta["ownerReferences"] = owners or [self.owner() for _ in range(dice.many(2))]
        if dice.maybe(0.05):
            meta["deletionTimestamp"] = BORN
            meta["deletionGracePeriodSeconds"] = dice.one(1, 30, MOST)
            meta["finalizers"] = ["example.com/hold", *([constants.FINALIZER] if dice.maybe(0.3) else ())]
        for each in ("labels", "annotations"):
            if not meta[each]:
                del meta[each]
        head = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        return Mutant(self.resource, {**head, **body, "metadata": meta}, foreign)

    # --- metadata ------------------------------------------------------------------------------------------------

    def labels(self):
        dice = self.dice
        found = {dice.choice(LABEL_KEYS): dice.label() for _ in range(dice.many(2))}
        if dice.maybe(0.35):
            found[KEYS.queue_name] = dice.one(QUEUE, QUEUE, QUEUE, "nosuch", self.near(resources.LOCAL_QUEUES))
        if dice.maybe(0.1):
            found[KEYS.priority_class] = dice.one(
                self.near(resources.WORKLOAD_PRIORITY_CLASSES),
                self.near(resources.PRIORITY_CLASSES),
                "system-node-critical",
                "nosuch",
            )
        return found

    def annotations(self):
        dice = self.dice
        found = dict(dice.choice(REQUESTS)) if dice.maybe(0.6) else {}
        for _ in range(dice.many(2)):
            if dice.maybe(0.4):
                found[dice.choice(ANNOTATION_KEYS)] = dice.text()
        return found

    def near(self, resource):
        """The name of another object of this kind, which may be there; else of none."""
        found = self.near_number(resource)
        return name_of(found) if found is not None else "nosuch"

    def near_number(self, resource):
        start = max(0, self.number - self.dice.randint(1, 40))
        for number in range(start, max(-1, start - 30), -1):
            if kind_of(self.seed, number) == resource:
                return number
        return None

    def owner(self, *kinds):
        """A reference to an owner that may be there, to another, or to none."""
        dice = self.dice
        resource = dice.one(*(kinds or (resources.JOBS, resources.JOBS, resources.JOB_SETS, resources.PODS)))
        number = self.near_number(resource)
        reference = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": name_of(number) if number is not None else "nosuch",
            "uid": uid_of(number) if number is not None else "nosuch",
            "controller": dice.maybe(0.9),
        }
        if dice.maybe(0.15):
            reference |= dice.one(
                {"uid": "honest-uid"},
                {"kind": dice.text()[:40] or "x"},
                {"apiVersion": dice.one("made.up/v1", "v1", "ray.io/v1", "kubeflow.org/v1", "apps/v1", "x/" * 50)},
                {"name": dice.text()[:300] or "x"},
                {"kind": "StatefulSet", "apiVersion": "apps/v1"},
                {"kind": "DaemonSet", "apiVersion": "apps/v1"},
                {"kind": "Node", "apiVersion": "v1"},
                {"uid": "u" * 5000},
                {"uid": "\u0661/\u0000"},
            )
        return reference

    # --- pods ----------------------------------------------------------------------------------------------------

    def amounts(self):
        dice = self.dice
        names = [dice.choice(NAMES) for _ in range(dice.randint(0, 3))]
        if dice.maybe(0.1):
            names.append(dice.choice(RARE_NAMES))
        if dice.maybe(0.03):
            names.append(f"deviceclass.resource.kubernetes.io/{self.near(resources.DEVICE_CLASSES)}")
        if dice.maybe(0.01):
            names += [f"example.com/r{self.number}-{each}" for each in range(dice.one(10, 70, 1000))]
        return {name: dice.quantity() for name in names}

    def requirements(self):
        dice = self.dice
        found = {}
        if dice.maybe(0.8):
            found["requests"] = self.amounts()
        if dice.maybe(0.4):
            found["limits"] = self.amounts()
        if dice.maybe(0.02):
            found["claims"] = [{"name": dice.text()} for _ in range(dice.many(2, 1000))]
        return found

    def container(self, name):
        dice = self.dice
        found = {"name": name, "image": "x"}
        if dice.maybe(0.9):
            found["resources"] = self.requirements()
        if dice.maybe(0.05):
            found["ports"] = [
                {
                    "containerPort": dice.randint(1, 65535),
                    "hostPort": dice.one(80, dice.randint(1, 65535)),
                    "hostIP": dice.one("", "10.0.0.1", "::"),
                    "protocol": dice.one("TCP", "UDP", "SCTP"),
                }
                for _ in range(dice.many(2))
            ]
        if dice.maybe(0.1):
            found["restartPolicy"] = dice.one("Always", "Never", "OnFailure")
        return found

    def spec(self):
        dice = self.dice
        spec = {"containers": [self.container(f"c{each}") for each in range(1 + dice.many(1))]}
        spec |= {"runtimeClassName": self.near(resources.RUNTIME_CLASSES)} if dice.maybe(0.05) else {}
        if dice.maybe(0.1):
            spec["initContainers"] = [self.container(f"i{each}") for each in range(dice.many(3))]
        if dice.maybe(0.05):
            spec["overhead"] = self.amounts()
        if dice.maybe(0.05):
            spec["resources"] = self.requirements()
        if dice.maybe(0.15):
            spec["nodeSelector"] = {
                dice.one(POOL, BLOCK, RACK, HOST, dice.choice(LABEL_KEYS), f"key-{self.number}-{each}"): dice.label()
                for each in range(dice.many(2))
            }
        if dice.maybe(0.15):
            spec["affinity"] = self.affinity()
        if dice.maybe(0.15):
            spec["tolerations"] = [
                {
                    "key": dice.one("gone", "node.kubernetes.io/not-ready", "k" * 63),
                    "operator": dice.one("Exists", "Equal", "Gt", "Lt"),
                    "value": dice.label(),
                    "effect": dice.one("", "NoSchedule", "NoExecute", "PreferNoSchedule"),
                }
                for _ in range(dice.many(2))
            ]
        if dice.maybe(0.05):
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": dice.one(1, 2, MOST),
                    "topologyKey": dice.one(RACK, BLOCK, HOST, "nosuch", "k" * 63),
                    "whenUnsatisfiable": dice.one("DoNotSchedule", "ScheduleAnyway"),
                    **({"labelSelector": self.selector()} if dice.maybe(0.8) else {}),
                    **({"minDomains": dice.one(1, 2, MOST)} if dice.maybe(0.3) else {}),
                    **({"matchLabelKeys": ["app"]} if dice.maybe(0.2) else {}),
                    **({"nodeTaintsPolicy": "Honor"} if dice.maybe(0.1) else {}),
                }
                for _ in range(dice.many(2))
            ]
        if dice.maybe(0.2):
            spec["priorityClassName"] = dice.one(
                self.near(resources.PRIORITY_CLASSES), "system-node-critical", "nosuch"
            )
        if dice.maybe(0.05):
            spec["priority"] = dice.one(-(2**31), -1, 0, MOST)
        if dice.maybe(0.03):
            spec["hostNetwork"] = True
        if dice.maybe(0.1):
            spec["terminationGracePeriodSeconds"] = dice.one(0, 1, MOST, 2**63 - 1, -1)
        return spec | self.pod_volumes() | self.pod_claims() | self.scheduling_group()

    # --- devices -------------------------------------------------------------------------------------------------

    def scheduling_group(self):
        dice = self.dice
        if not dice.maybe(0.15):
            return {}
        named = dice.one(*[self.near(resources.POD_GROUPS)] * 4, "nosuch", "g" * 253)
        return {"schedulingGroup": {"podGroupName": named}}

    def group_terms(self):
        """The spec of a PodGroup, or a Job's spec.scheduling."""
        dice = self.dice
        spec = {"schedulingPolicy": dice.one({"basic": {}}, {"gang": {"minCount": dice.choice(COUNTS[1:])}})}
        if dice.maybe(0.6):
            key = dice.one(RACK, HOST, "nosuch/level", "k" * 300, dice.text())
            spec["schedulingConstraints"] = {"topology": [{"key": key}]}
        if dice.maybe(0.5):
            spec["disruptionMode"] = dice.one({"all": {}}, {"single": {}})
        if dice.maybe(0.1):
            spec["resourceClaims"] = [{"name": dice.text(), "resourceClaimName": dice.text()}]
        return spec

    def pod_claims(self):
        dice = self.dice
        if not dice.maybe(0.05):
            return {}
        sources = ({}, {"resourceClaimName": dice.text()}, {"resourceClaimTemplateName": dice.one("x", "t" * 253)})
        sources = (*sources, *[{"resourceClaimTemplateName": self.near(resources.CLAIM_TEMPLATES)}] * 4)
        names = (dice.one("gpu", "c" * 63, dice.text()) for _ in range(1 + dice.many(2, 10_000)))
        return {"resourceClaims": [{"name": name, **dice.choice(sources)} for name in names]}

    def device_class(self):
        dice = self.dice
        name = dice.one(
            *NAMES, *RARE_NAMES, "n" * 5000, dice.text(), f"deviceclass.resource.kubernetes.io/{dice.text()}"
        )
        spec = {"selectors": [{"cel": {"expression": dice.text()}}]}
        return {"spec": {**spec, **dice.one({}, {"extendedResourceName": name}, {"extendedResourceName": name})}}

    def asked_devices(self):
        dice = self.dice
        requests = [self.device_request(f"r{number}") for number in range(1 + dice.many(2, 31))]
        match = dice.one("matchAttribute", "distinctAttribute")
        constraint = {match: f"mutant.example.com/{dice.one('a', 'b')}", "requests": []}
        return {"devices": {"requests": requests, "constraints": [constraint] * dice.many(1, 32)}}

    def device_request(self, name):
        dice = self.dice
        asked = {"deviceClassName": dice.one(self.near(resources.DEVICE_CLASSES), "nosuch", "c" * 253)}
        selectors = [{"cel": {"expression": self.expression()}} for _ in range(dice.many(1, 32))]
        count = {"allocationMode": "ExactCount", "count": dice.one(1, 1, 1, 2, 8, 2**63 - 1)}
        asked |= {"selectors": selectors, **dice.one(count, count, {"allocationMode": "All"})}
        asked |= dice.one({}, {}, {"tolerations": [{"operator": "Exists"}]})
        if dice.maybe(0.2):
            return {
                "name": name,
                "firstAvailable": [{"name": f"s{each}", **asked} for each in range(dice.randint(1, 8))],
            }
        more = {"adminAccess": True} if dice.maybe(0.1) else {}
        capacity = {"capacity": {"requests": {"memory": dice.quantity()}}} if dice.maybe(0.1) else {}
        return {"name": name, "exactly": {**asked, **more, **capacity}}

    def expression(self):
        texts = ("true", "device.driver == 'mutant.example.com'", "device.attributes['mutant.example.com'].a > 1")
        return self.dice.one(*texts, *texts, "device.", "1", self.dice.text())

    def resource_slice(self):
        dice = self.dice
        where = dice.one({"nodeName": self.near(resources.NODES)}, {"nodeName": "nosuch"}, {"allNodes": True})
        pool = {"name": dice.one("p", self.near(resources.NODES)), "generation": dice.one(1, 1, 2, 2**63 - 1)}
        pool["resourceSliceCount"] = dice.one(1, 1, 1, 2, 2**63 - 1)
        devices = [self.device(f"d{number}") for number in range(dice.many(8, 128))]
        return {"spec": {"driver": "mutant.example.com", "pool": pool, **where, "devices": devices}}

    def device(self, name):
        dice = self.dice
        numbers = (0, 1, 2**63 - 1, -(2**63))
        value = dice.one({"int": dice.choice(numbers)}, {"string": "x" * 64}, {"bool": True}, {"version": "1.2.3"})
        made = {"name": name, "attributes": {"a": value, "b": {"int": 1}}}
        if dice.maybe(0.1):
            made["taints"] = [{"key": "k", "effect": dice.one("NoSchedule", "NoExecute", "None")}]
        if dice.maybe(0.2):
            made |= {
                "allowMultipleAllocations": True,
                "capacity": {"memory": {"value": dice.one("0", "64Gi", str(2**63 - 1))}},
            }
        return made

    def taint_rule(self):
        dice = self.dice
        which = dice.one({}, {"driver": "mutant.example.com"}, {"device": "d0"}, {"pool": "p"})
        return {"spec": {"deviceSelector": which, "taint": {"key": "k", "effect": dice.one("NoSchedule", "NoExecute")}}}

    def resource_claim(self):
        dice = self.dice
        results = [
            {"request": "r0", "driver": "mutant.example.com", "pool": "p", "device": f"d{dice.randint(0, 9)}"}
            for _ in range(dice.many(3, 32))
        ]
        status = {"allocation": {"devices": {"results": results}}} if dice.maybe(0.7) else {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": self.near(resources.PODS), "uid": "u"}
        return {"spec": self.asked_devices(), "status": status, "owners": [owner] if dice.maybe(0.5) else ()}

    # --- volumes -------------------------------------------------------------------------------------------------

    def pod_volumes(self):
        dice = self.dice
        if not dice.maybe(0.2):
            return {}
        some = [self.pod_volume(f"v{each}") for each in range(dice.randint(1, 3))]
        return {"volumes": [{**dice.choice(some), "name": f"v{each}"} for each in range(dice.many(3, 10_000))]}

    def pod_volume(self, name):
        dice = self.dice
        claim = dice.one(self.near(resources.PERSISTENT_VOLUME_CLAIMS), "nosuch", name, "c" * 5000, dice.text() or "x")
        return {
            "name": name,
            **dice.one(
                {"persistentVolumeClaim": {"claimName": claim}},
                {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
                {"ephemeral": {"volumeClaimTemplate": {"spec": self.claim_spec()}}},
                {"emptyDir": {}},
            ),
        }

    def claim_spec(self):
        dice = self.dice
        found = {"accessModes": [dice.choice(MODES) for _ in range(dice.randint(1, 2))]}
        found["resources"] = {"requests": {"storage": dice.quantity()}}
        if dice.maybe(0.8):
            found["storageClassName"] = dice.one("", self.near(resources.STORAGE_CLASSES), "nosuch")
        if dice.maybe(0.2):
            found["selector"] = self.selector()
        if dice.maybe(0.2):
            found["volumeMode"] = dice.one("Block", "Filesystem")
        return found

    def claim(self):
        dice = self.dice
        spec, annotations = self.claim_spec(), {}
        if dice.maybe(0.5):
            spec["volumeName"] = dice.one(self.near(resources.PERSISTENT_VOLUMES), "nosuch", "v" * 5000)
        if dice.maybe(0.6):
            annotations["pv.kubernetes.io/bind-completed"] = dice.text()
        if dice.maybe(0.2):
            annotations["volume.kubernetes.io/selected-node"] = dice.one(*NODES, "nowhere", dice.text())
        if dice.maybe(0.1):
            annotations["volume.beta.kubernetes.io/storage-class"] = dice.text()
        found = {"spec": spec, "status": {"phase": dice.one("Bound", "Bound", "Pending", "Lost")}}
        if dice.maybe(0.2):
            found["owners"] = [self.owner(resources.PODS)]
        return {**found, "annotations": annotations}

    def volume(self):
        dice = self.dice
        spec = {
            "capacity": {"storage": dice.quantity()},
            "accessModes": [dice.choice(MODES) for _ in range(dice.randint(1, 2))],
            "storageClassName": dice.one("", self.near(resources.STORAGE_CLASSES), "nosuch"),
        }
        if dice.maybe(0.6):
            claim = self.near(resources.PERSISTENT_VOLUME_CLAIMS)
            spec["claimRef"] = {"namespace": dice.one(*NAMESPACES), "name": claim, "uid": dice.one("", claim)}
        if dice.maybe(0.7):
            terms = [{"matchExpressions": self.expressions()} for _ in range(dice.randint(0, 3))]
            terms *= dice.many(1, 10_000)
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        spec |= dice.one(
            {"csi": {"driver": dice.choice(DRIVERS) or "x", "volumeHandle": dice.text()}},
            {"awsElasticBlockStore": {"volumeID": dice.text()}},
            {"local": {"path": "/x"}},
        )
        phase = dice.one("Available", "Available", "Bound", "Released", "Failed", "Pending")
        labels = {dice.choice(ZONES): dice.one("a", "a__b", "__", dice.label())} if dice.maybe(0.4) else {}
        return {"spec": spec, "status": {"phase": phase}, "labels": labels}

    def storage_class(self):
        dice = self.dice
        found = {
            "provisioner": dice.choice(DRIVERS),
            "volumeBindingMode": dice.one("WaitForFirstConsumer", "WaitForFirstConsumer", "Immediate"),
        }
        if dice.maybe(0.5):
            found["allowedTopologies"] = [
                {
                    "matchLabelExpressions": [
                        {"key": dice.one(RACK, BLOCK, "nosuch"), "values": [dice.label() for _ in range(dice.many())]}
                        for _ in range(dice.many(2, 100))
                    ]
                }
                for _ in range(dice.many(2, 1000))
            ]
        default = "storageclass.kubernetes.io/is-default-class"
        return {**found, "annotations": {default: dice.one("true", "false", dice.text())} if dice.maybe(0.3) else {}}

    def csi_node(self):
        dice = self.dice
        drivers = []
        for each in range(dice.many(2, 3000)):
            driver = {"name": dice.one(*DRIVERS, f"driver-{self.number}-{each}"), "nodeID": dice.text()}
            if dice.maybe(0.8):
                driver["allocatable"] = {"count": dice.one(0, 1, 2, 5, MOST)} if dice.maybe(0.9) else {}
            drivers.append(driver)
        return {"name": dice.one(*NODES, self.near(resources.NODES)), "spec": {"drivers": drivers}}

    def csi_driver(self):
        dice = self.dice
        spec = dice.one({}, {"storageCapacity": True}, {"storageCapacity": True}, {"storageCapacity": False})
        return {"name": dice.one(*[name or "x" for name in DRIVERS], name_of(self.number)), "spec": spec}

    def storage_capacity(self):
        dice = self.dice
        found = {"storageClassName": dice.one(self.near(resources.STORAGE_CLASSES), "nosuch")}
        if dice.maybe(0.8):
            found["nodeTopology"] = self.selector()
        for name in ("capacity", "maximumVolumeSize"):
            if dice.maybe(0.7):
                found[name] = dice.quantity()
        return found

    def expressions(self, keys=(RACK, BLOCK, HOST, POOL, "app", "nosuch")):
        dice = self.dice
        return [
            {
                "key": dice.one(*keys, f"key-{self.number}-{each}"),
                "operator": dice.choice(OPERATORS),
                "values": [dice.label() for _ in range(dice.many(3, 1000))],
            }
            for each in range(dice.many(2, 300))
        ]

    def selector(self):
        dice = self.dice
        return dice.one(
            {},
            {"matchLabels": {dice.choice(LABEL_KEYS): dice.label()}},
            {"matchExpressions": self.expressions()},
            {"matchLabels": {"app": "x"}, "matchExpressions": self.expressions()},
        )

    def affinity(self):
        dice = self.dice
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        found = {}
        if dice.maybe(0.5):
            terms = [
                dice.one(
                    {"matchExpressions": self.expressions()},
                    {
                        "matchFields": [
                            {"key": "metadata.name", "operator": dice.one("In", "NotIn"), "values": [dice.label()]}
                        ]
                    },
                    {},
                )
                for _ in range(dice.many(3, 100))
            ]
            found["nodeAffinity"] = {required: {"nodeSelectorTerms": terms}}
        for name in ("podAffinity", "podAntiAffinity"):
            if dice.maybe(0.4):
                found[name] = {required: [self.term() for _ in range(dice.many(2, 150))]}
        return found

    def term(self):
        dice = self.dice
        found = {"topologyKey": dice.one(RACK, BLOCK, HOST, "nosuch", f"key-{self.number}")}
        if dice.maybe(0.8):
            found["labelSelector"] = self.selector()
        if dice.maybe(0.3):
            found["namespaces"] = [dice.one("wild", "wild-2", "nosuch") for _ in range(dice.many(2))]
        if dice.maybe(0.2):
            found["namespaceSelector"] = self.selector()
        if dice.maybe(0.2):
            found[dice.one("matchLabelKeys", "mismatchLabelKeys")] = [dice.choice(LABEL_KEYS)]
        return found

    def gates(self):
        dice = self.dice
        return [{"name": KEYS.gate}] * dice.maybe(0.7) + [{"name": "example.com/other"}] * dice.maybe(0.1)

    def template(self):
        dice = self.dice
        metadata = {}
        if dice.maybe(0.4):
            metadata["labels"] = self.labels()
        if dice.maybe(0.5):
            metadata["annotations"] = self.annotations()
        spec = self.spec()
        if gates := self.gates():
            spec["schedulingGates"] = gates
        return {"metadata": metadata, "spec": spec}

    def pod(self):
        dice = self.dice
        spec, annotations = self.spec(), {}
        bound = dice.maybe(0.35)
        if bound:
            spec["nodeName"] = dice.one(*NODES, *NODES, "nowhere", self.near(resources.NODES), "n" * 253)
        elif gates := self.gates():
            spec["schedulingGates"] = gates
        found = {"spec": spec, "status": self.pod_status(spec)}
        if dice.maybe(0.5):
            others = resources.STATEFUL_SETS, resources.REPLICA_SETS, *OPERATORS_KINDS
            found["owners"] = [self.owner(*[resources.JOBS] * 9, resources.PODS, *[resources.JOB_SETS] * 3, *others)]
        labels = {}
        if dice.maybe(0.15):
            led = self.near(resources.LEADER_WORKER_SETS)
            labels = {
                leaderworkerset.NAME: led,
                leaderworkerset.GROUP: dice.one("0", "1", "2", "9" * 63, "x", "0" * 63),
            }
            labels[constants.WORKER_INDEX] = dice.one("0", "1", "2", dice.label())
            labels |= {leaderworkerset.REVISION: dice.one("h0", "h1", dice.label())} if dice.maybe(0.5) else {}
            found["owners"] = [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": led, "uid": led, "controller": True}
            ]
        elif dice.maybe(0.25):
            labels[KEYS.pod_group] = dice.one("g0", "g1", f"g{self.number // 10}", dice.label())
            if dice.maybe(0.6):
                annotations[KEYS.pod_group_total] = dice.one("1", "2", "3", "16", dice.text())
        if dice.maybe(0.3):
            labels[dice.choice(constants.RANK_LABELS)] = dice.one("0", "1", "2", dice.label())
        if dice.maybe(0.1):
            number = self.near_number(resources.JOBS)
            mark = workload_name("Job", name_of(number), uid_of(number)) if number is not None else dice.text()
            annotations[KEYS.workload] = mark
        return {**found, "labels": labels, "annotations": annotations}

    def pod_status(self, spec):
        dice = self.dice
        status = {"phase": dice.one("Pending", "Pending", "Running", "Running", "Succeeded", "Failed", "Unknown", "")}
        if dice.maybe(0.4):
            status["conditions"] = [
                {
                    "type": dice.one("Ready", "PodScheduled", "PodResizePending", "DisruptionTarget"),
                    "status": dice.one("True", "False", "Unknown"),
                    "reason": dice.one("", "Infeasible", "Deferred", "SchedulingGated", dice.text()[:1000]),
                    "message": dice.text(),
                    "lastTransitionTime": dice.one(None, BORN),
                }
                for _ in range(dice.many(2))
            ]
        if dice.maybe(0.1):
            status |= {
                "reason": dice.one("UnexpectedAdmissionError", "TopologyAffinityError", "Evicted", dice.text()),
                "message": dice.text(),
            }
        if dice.maybe(0.15):
            status["containerStatuses"] = [
                {"name": each["name"], "resources": self.requirements(), "allocatedResources": self.amounts()}
                for each in spec["containers"]
            ]
        if dice.maybe(0.05):
            status |= {"resources": self.requirements(), "allocatedResources": self.amounts()}
        return status

    # --- owners of pods ------------------------------------------------------------------------------------------

    def conditions(self, *types):
        dice = self.dice
        return [
            {
                "type": each,
                "status": dice.one("True", "False"),
                "reason": dice.text()[:1000],
                "message": dice.text(),
                "lastTransitionTime": BORN,
            }
            for each in types
            if dice.maybe(0.15)
        ]

    def job_spec(self):
        dice = self.dice
        spec = {"template": self.template(), "suspend": dice.maybe(0.5)}
        if dice.maybe(0.9):
            spec["parallelism"] = dice.count()
        if dice.maybe(0.8):
            spec["completions"] = dice.count()
        if dice.maybe(0.4):
            spec["completionMode"] = dice.one("Indexed", "NonIndexed")
        if dice.maybe(0.3):
            spec["backoffLimit"] = dice.count()
        if dice.maybe(0.1):
            spec["scheduling"] = self.group_terms()
        if dice.maybe(0.05):
            spec["managedBy"] = dice.one("example.com/other", constants.JOB_CONTROLLER, constants.JOB_SET_CONTROLLER)
        return spec

    def job(self):
        dice = self.dice
        spec, status = self.job_spec(), {}
        if dice.maybe(0.3):
            ranks = ("", "0", "0-3", "1,3-5,7", f"0-{MOST - 1}", ",".join(str(each) for each in range(0, 2000, 2)))
            uncounted = {"succeeded": ["u"] * dice.many(2), "failed": ["u"]}
            status = {
                "active": dice.count(),
                "ready": dice.count(),
                "succeeded": dice.count(),
                "failed": dice.count(),
                "terminating": dice.count(),
                "completedIndexes": dice.choice(ranks),
                "conditions": self.conditions("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"),
                **({"failedIndexes": dice.choice(ranks)} if dice.maybe(0.2) else {}),
                **({"startTime": BORN} if dice.maybe(0.5) else {}),
                **({"uncountedTerminatedPods": uncounted} if dice.maybe(0.2) else {}),
            }
        found = {"spec": spec, "status": status}
        if dice.maybe(0.2):
            found["owners"] = [self.owner(resources.JOB_SETS, resources.JOB_SETS, resources.PODS)]
            found["labels"] = {
                constants.JOB_SET_ROLE: dice.one("r0", "r1", dice.label()),
                constants.JOB_SET_INDEX: dice.label(),
            }
        if dice.maybe(0.1):
            found["annotations"] = {KEYS.min_parallelism: dice.text()}
        return found

    def jobset(self):
        dice = self.dice
        replicated = [
            {
                "name": f"r{each}",
                "replicas": dice.count(),
                "template": {"metadata": {}, "spec": self.job_spec()},
                **({"dependsOn": [{"name": "r0", "status": dice.one("Ready", "Complete")}]} if dice.maybe(0.1) else {}),
            }
            for each in range(dice.many(3, 60))
        ]
        spec = {"replicatedJobs": replicated, "suspend": dice.maybe(0.4)}
        if dice.maybe(0.1):
            spec["startupPolicy"] = {"startupPolicyOrder": dice.one("InOrder", "AnyOrder", "")}
        if dice.maybe(0.05):
            spec["managedBy"] = dice.one("example.com/other", constants.JOB_SET_CONTROLLER)
        return {"spec": spec, "status": {"conditions": self.conditions("Completed", "Failed", "Suspended")}}

    def leaders(self):
        dice = self.dice
        template = {"size": dice.one(1, 1, 2, 2, 3, dice.count()), "workerTemplate": self.template()}
        if dice.maybe(0.4):
            template["leaderTemplate"] = self.template()
        spec = {"replicas": dice.count(), "leaderWorkerTemplate": template}
        if dice.maybe(0.2):
            spec["startupPolicy"] = dice.one("LeaderReady", "LeaderCreated", "")
        return {"spec": spec}

    def revision(self):
        """Of a LeaderWorkerSet, mostly: what is in it may be any object."""
        dice = self.dice
        number = self.near_number(resources.LEADER_WORKER_SETS)
        led = name_of(number) if number is not None else "nosuch"
        data = self.retyped(self.leaders()) if dice.maybe(0.5) else self.leaders()
        labels = {leaderworkerset.NAME: dice.one(led, led, dice.label())}
        labels |= {leaderworkerset.REVISION: dice.one("h0", "h1", dice.label())}
        owner = {
            "apiVersion": resources.LEADER_WORKER_SETS.api_version,
            "kind": resources.LEADER_WORKER_SETS.kind,
            "name": led,
            "uid": uid_of(number) if number is not None else "nosuch",
            "controller": True,
        }
        owners = [owner] if dice.maybe(0.8) else ()
        return {"data": data, "revision": dice.one(1, 2, 2**63 - 1), "labels": labels, "owners": owners}

    def stateful_set(self):
        dice = self.dice
        spec = {"template": self.template(), "replicas": dice.count()}
        spec |= dice.one({}, {"podManagementPolicy": "Parallel"}, {"podManagementPolicy": "OrderedReady"})
        if dice.maybe(0.3):
            spec["ordinals"] = {"start": dice.one(0, 1, dice.count())}
        return {"spec": spec, "status": {"replicas": dice.count(), "readyReplicas": dice.count()}}

    def replica_set(self):
        """Of a Deployment, mostly, whose annotations anybody may have written."""
        dice = self.dice
        annotations = {
            replicas.DESIRED: dice.one(str(dice.count()), dice.text()),
            replicas.REVISION: dice.one("1", "2", dice.text()),
        }
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": dice.one("d0", "d1", "u" * 5000)}
        owners = [{**owner, "controller": dice.maybe(0.9)}] if dice.maybe(0.8) else ()
        spec = {"template": self.template(), "replicas": dice.count()}
        return {"spec": spec, "annotations": annotations, "owners": owners}

    def training_job(self):
        dice = self.dice
        names = (*("Master", "Worker", "Launcher", "PS", "Chief", "Evaluator", "worker"), dice.label() or "x")
        some = {
            dice.choice(names): {**({"replicas": dice.count()} if dice.maybe(0.8) else {}), "template": self.template()}
            for _ in range(1 + dice.many(2, 40))
        }
        spec = {f"{dice.one('pytorch', 'mpi', 'tf', 'xgb', 'jax', 'paddle')}ReplicaSpecs": some}
        if dice.maybe(0.3):
            spec["launcherCreationPolicy"] = dice.one("AtStartup", "WaitForWorkersReady")
        if dice.maybe(0.3):
            spec["runPolicy"] = {"suspend": dice.maybe(0.5), "cleanPodPolicy": "None"}
        return {"spec": spec, "status": {"conditions": self.conditions("Created", "Running", "Succeeded", "Failed")}}

    def ray_cluster(self):
        dice = self.dice
        groups = [
            {
                "groupName": dice.one(f"g{each}", "headgroup", dice.label()),
                "template": self.template(),
                **{
                    name: dice.count()
                    for name in ("replicas", "minReplicas", "maxReplicas", "numOfHosts")
                    if dice.maybe(0.5)
                },
                **({"suspend": True} if dice.maybe(0.1) else {}),
            }
            for each in range(dice.many(2, 40))
        ]
        spec = {"headGroupSpec": {"template": self.template()}, "workerGroupSpecs": groups}
        return {"spec": spec, "status": {"conditions": self.conditions("HeadPodReady", "RayClusterSuspended")}}

    def retyped(self, body):
        """With anything anywhere."""
        dice = self.dice
        for _ in range(dice.one(1, 1, 2, 4)):
            change = dice.one(
                partial(replaced, anything=anything),
                partial(replaced, anything=anything),
                removed,
                moved,
                wrapped,
                renamed,
            )
            body = change(body, dice)
            if not isinstance(body, dict):
                return {"spec": body}
        return body if "metadata" not in body else {"spec": body}

    # --- machines ------------------------------------------------------------------------------------------------

    def node(self):
        dice = self.dice
        labels = {
            POOL: dice.one(QUEUE, QUEUE, "other"),
            BLOCK: dice.one("b0", "b1", dice.label()),
            RACK: dice.one("r0", "r9", dice.label()),
            HOST: name_of(self.number),
        }
        if dice.maybe(0.1):
            del labels[dice.one(POOL, BLOCK, RACK, HOST)]
        if dice.maybe(0.02):
            labels |= {f"key-{self.number}-{each}": dice.label() for each in range(dice.one(10, 300))}
        allocatable = {
            "cpu": dice.one("4", dice.quantity()),
            "memory": "64Gi",
            "pods": dice.one("110", dice.quantity()),
        }
        allocatable |= self.amounts()
        conditions = [
            {
                "type": "Ready",
                "status": dice.one("True", "True", "True", "False", "Unknown"),
                "lastTransitionTime": BORN,
            }
        ]
        found = {
            "spec": {},
            "status": {
                "allocatable": allocatable,
                "conditions": conditions,
                "nodeInfo": {"kubeletVersion": dice.one("v1.36.0", "", dice.text())},
            },
            "labels": labels,
        }
        if dice.maybe(0.15):
            found["spec"]["taints"] = [
                {
                    "key": dice.one("gone", f"t-{self.number}"),
                    "value": dice.label(),
                    "effect": dice.one("NoSchedule", "NoExecute", "PreferNoSchedule"),
                }
                for _ in range(dice.many(2))
            ]
        if dice.maybe(0.1):
            found["spec"]["unschedulable"] = True
        if dice.maybe(0.15):
            found["annotations"] = {
                constants.GPU_STATES: dice.one(
                    dice.text(), json.dumps([{"index": 0, "uuid": "GPU-0", "state": "free"}])
                )
            }
        return found

    def machine(self):
        return self.dice.one(*NODES, self.near(resources.NODES), self.near(resources.NODES), "nowhere")

    def topology(self):
        dice = self.dice
        zones = [
            {
                "name": dice.one(f"node-{each}", f"node-{each}", f"node-{each}", "node-4095", "node--1", dice.text()),
                "type": dice.one("Node", "Node", "Node", "Core", ""),
                "costs": [
                    {"name": f"node-{other}", "value": dice.one(10, 20, dice.number())} for other in range(dice.many(3))
                ],
                "resources": [
                    {
                        "name": dice.choice(NAMES),
                        **{
                            field: dice.loose_quantity()
                            for field in ("capacity", "allocatable", "available")
                            if dice.maybe(0.9)
                        },
                    }
                    for _ in range(dice.many(4))
                ],
            }
            for each in range(dice.many(4, 64))
        ]
        found = {"zones": zones, "name": self.machine()}
        if dice.maybe(0.6):
            found["topologyPolicies"] = [
                dice.one("SingleNUMANodeContainerLevel", "RestrictedPodLevel", "BestEffort", "None", dice.text())
            ]
        if dice.maybe(0.6):
            found["attributes"] = [
                {
                    "name": dice.one(
                        "topologyManagerPolicy", "topologyManagerScope", "nodeTopologyPodsFingerprint", "x"
                    ),
                    "value": dice.one("single-numa-node", "restricted", "pod", "container", "best-effort", dice.text()),
                }
                for _ in range(dice.many(4))
            ]
        return found

    def flex(self):
        dice = self.dice
        ids = [f"{kind}-{each}" for kind in ("socket", "numa", "core", "gpu") for each in range(dice.many(3, 40))]
        types = ("CPUSocket", "NUMANode", "CPUCoreGroup", "CPUCore", "GPU", "NIC")
        status = self.flex_status()
        spec = {
            "nodes": [{"id": each, "type": dice.choice(types), "attributes": {"model": dice.label()}} for each in ids],
            "edges": [
                {
                    "source": dice.one("nosuch", *ids),
                    "target": dice.one("nosuch", *ids),
                    "type": dice.one("host", "contain", "localized", "nearby", "link", "distance"),
                    "attributes": {dice.one("kind", "distance", "count"): dice.one("NV12", "PIX", "10", "9" * 60, "")},
                }
                for _ in range(dice.many(12, 300))
            ],
        }
        return {"spec": spec, "status": status, "name": self.machine()}

    def flex_status(self):
        dice = self.dice
        cpus = ("0-7", "0", "", "0-3,8-11", "4096-8191", "0-1,0-1", "7")

        def zones():
            return [dice.randint(0, 3) for _ in range(dice.many(2, 64))]

        def holder():
            uid, pod = dice.one(uid_of(self.number - 1), "u"), self.near(resources.PODS)
            return {"podUid": uid, "namespace": "wild", "pod": pod, "container": "c0"}

        def amount():
            return dice.one(0, 1, 2**30, 2**40, 2**53, 2**63 - 1)

        kubelet = {
            "version": dice.one("v1.36.0", "", "x" * 64),
            "topologyManagerPolicy": dice.one("none", "best-effort", "restricted", "single-numa-node"),
            "topologyManagerScope": dice.one("container", "pod"),
            "cpuManagerPolicy": dice.one("none", "static"),
            "memoryManagerPolicy": dice.one("None", "Static"),
            "threadsPerCore": dice.one(1, 2, 16),
            "onlineCpus": dice.choice(cpus),
            "reservedCpus": dice.choice(cpus),
        }
        if dice.maybe(0.2):
            kubelet["topologyManagerPolicyOptions"] = {
                dice.one("max-allowable-numa-nodes", "prefer-closest-numa-nodes"): dice.one("true", "8", "9" * 63)
            }
        status = {
            "kubelet": kubelet,
            "cpus": {
                "defaultSet": dice.choice(cpus),
                "assignments": [{**holder(), "cpus": dice.choice(cpus)} for _ in range(dice.many(2))],
            },
            "memory": {
                "zones": [
                    {
                        "zone": zone,
                        "assignments": dice.count(),
                        "cells": zones(),
                        "amounts": [
                            {
                                "type": kind,
                                "total": amount(),
                                "allocatable": amount(),
                                "reserved": amount(),
                                "free": amount(),
                            }
                            for kind in ("memory", "hugepages-2Mi", "hugepages-1Gi")[: dice.many(3)]
                        ],
                    }
                    for zone in range(dice.many(3))
                ],
                "assignments": [
                    {**holder(), "type": "memory", "zones": zones(), "size": amount()} for _ in range(dice.many(2))
                ],
            },
            "devices": [
                {
                    "resource": resource,
                    "devices": [
                        {
                            "id": f"d{each}",
                            "zones": zones(),
                            "healthy": dice.maybe(0.9),
                            **({"usedBy": holder()} if dice.maybe(0.2) else {}),
                        }
                        for each in range(dice.many(8, 400))
                    ],
                }
                for resource in ("nvidia.com/gpu", "example.com/x")[: dice.many(2)]
            ],
            "conditions": [{"type": "Ready", "status": dice.one("True", "False")}],
        }
        for name in list(status):
            if dice.maybe(0.1):
                del status[name]
        return status

    # --- queues --------------------------------------------------------------------------------------------------

    def flavor(self):
        dice = self.dice
        spec = {"nodeLabels": {POOL: dice.one(QUEUE, "other", dice.label())}} if dice.maybe(0.9) else {}
        if dice.maybe(0.7):
            levels = [*LEVELS, "key-1", "nosuch", "app"]
            dice.shuffle(levels)
            spec["topology"] = {"levels": dice.one(list(LEVELS), [RACK, HOST], [HOST], levels[: dice.randint(1, 6)])}
        if dice.maybe(0.2):
            spec["tolerations"] = [{"key": "gone", "operator": "Exists"}]
        if dice.maybe(0.1):
            spec["nodeTaints"] = [{"key": "gone", "value": "", "effect": "NoSchedule"}]
        return spec

    def stored_quantity(self):
        """As the pattern of our CRDs takes it."""
        found = self.dice.loose_quantity() if self.dice.maybe(0.1) else self.dice.quantity()
        if isinstance(found, int):
            return max(found, 0)
        return (
            found
            if found
            and found[0] in "0123456789+."
            and found[1:].isascii()
            and len(found) <= 64
            and not found.endswith("E")
            else "1"
        )

    def quota(self, name, cohort):
        limits = {"borrowingLimit": self.stored_quantity(), "lendingLimit": "0"} if cohort else {}
        kept = {each: limit for each, limit in limits.items() if self.dice.maybe(0.3)}
        return {"name": name, "nominalQuota": self.stored_quantity(), **kept}

    def cohort(self):
        """One of a few that are each other's parents, so that there are circles; the last of `TREE` is nobody's."""
        dice, name = self.dice, TREE[self.number % (len(TREE) - 1)]
        # The API server refuses a cohort that is its own parent.
        parent = dice.one("", *(each for each in (*TREE, "c" * 253) if each != name))
        spec = {"resourceGroups": self.groups(parent)} if dice.maybe(0.7) else {}
        if parent:
            spec["parentName"] = parent
        if dice.maybe(0.3):
            spec["fairSharing"] = {"weight": self.stored_quantity()}
        return {"name": name, "spec": spec}

    def groups(self, cohort):
        """Quotas; with limits where there is a cohort to borrow from and to lend to."""
        dice, groups = self.dice, []
        flavors = [QUEUE, self.near(resources.RESOURCE_FLAVORS), "nosuch"]
        names = list(dict.fromkeys(dice.choice((*NAMES, *RARE_NAMES)) for _ in range(dice.many(4, 16))))
        while names and flavors and dice.maybe(0.8):
            covered, names = names[: (cut := dice.randint(1, 3))], names[cut:]
            here, flavors = flavors[: (cut := dice.randint(1, 2))], flavors[cut:]
            groups.append(
                {
                    "coveredResources": covered,
                    "flavors": [
                        {"name": each, "resources": [self.quota(name, cohort) for name in covered]} for each in here
                    ],
                }
            )
        return groups

    def cluster_queue(self):
        dice = self.dice
        cohort = dice.one("", "", f"cohort-{self.number // 20}", "c" * 253, dice.one(*TREE))
        spec = {
            "resourceGroups": self.groups(cohort),
            "queueingStrategy": dice.one("StrictFIFO", "BestEffortFIFO"),
            "stopPolicy": dice.one("None", "None", "None", "Hold", "HoldAndDrain"),
            "flavorFungibility": {
                "whenCanBorrow": dice.one("MayStopSearch", "TryNextFlavor"),
                "whenCanPreempt": dice.one("MayStopSearch", "TryNextFlavor"),
                **dice.one({}, {"preference": dice.one("BorrowingOverPreemption", "PreemptionOverBorrowing")}),
            },
            "preemption": {
                "reclaimWithinCohort": dice.one("Any", "LowerPriority"),
                "withinClusterQueue": dice.one("Never", "LowerPriority", "LowerOrNewerEqualPriority"),
                "borrowWithinCohort": {
                    "policy": dice.one("Never", "LowerPriority"),
                    "maxPriorityThreshold": dice.one(-(2**31), 0, MOST),
                },
            },
        }
        if dice.maybe(0.9):
            spec["namespaceSelector"] = dice.one({}, {}, self.selector())
        if cohort:
            spec["cohortName"] = cohort
        if dice.maybe(0.2):
            spec["fairSharing"] = {"weight": self.stored_quantity()}
        if dice.maybe(0.1):
            spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": "check", "onFlavors": [QUEUE]}]}
        return {"spec": spec}

    def local_queue(self):
        dice = self.dice
        return {
            "clusterQueue": dice.one(QUEUE, self.near(resources.CLUSTER_QUEUES), "nosuch"),
            "stopPolicy": dice.one("None", "Hold", "HoldAndDrain"),
            **({"fairSharing": {"weight": self.stored_quantity()}} if dice.maybe(0.2) else {}),
        }

    def priority_class(self):
        dice = self.dice
        return {
            "value": dice.one(-(2**31), -1, 0, 1, 1_000_000_000, MOST),
            "globalDefault": dice.maybe(0.1),
            "preemptionPolicy": dice.one("Never", "PreemptLowerPriority"),
        }

    def workload_class(self):
        return {"value": self.dice.one(-(2**31), -1, 0, 1, 1_000_000_000, MOST), "description": self.dice.text()[:2048]}

    def limit_range(self):
        dice = self.dice
        items = [
            {
                "type": dice.one("Container", "Container", "Pod", "PersistentVolumeClaim"),
                **({"default": self.amounts()} if dice.maybe(0.5) else {}),
                **({"defaultRequest": self.amounts()} if dice.maybe(0.8) else {}),
            }
            for _ in range(dice.many(2, 1000))
        ]
        return {"spec": {"limits": dice.one(items, items, None)}}

    def runtime_class(self):
        dice = self.dice
        found = {"handler": "runsc"}
        if dice.maybe(0.5):
            found["overhead"] = {"podFixed": self.amounts()} if dice.maybe(0.8) else {}
        if dice.maybe(0.5):
            selector = {dice.one(POOL, RACK, f"key-{each}"): dice.label() for each in range(dice.many(3))}
            tolerations = [{"key": "gone", "operator": "Exists"} for _ in range(dice.many(2, 1000))]
            found["scheduling"] = {"nodeSelector": selector, "tolerations": tolerations} if dice.maybe(0.8) else {}
        return found

    def budget(self):
        dice = self.dice
        spec = {"selector": self.selector()} if dice.maybe(0.9) else {}
        return {"spec": spec, "status": {"disruptionsAllowed": dice.count(), "observedGeneration": dice.number()}}

    # --- Workloads -----------------------------------------------------------------------------------------------

    def workload(self):
        """One that a tenant made, perhaps by the name that the Workload of a Job has."""
        dice = self.dice
        names = ["main", "workers", "leader", "r0", "r1"][: dice.randint(1, 3)]
        pod_sets = []
        for name in names:
            pod_sets.append({"name": name, "count": dice.count(), "template": self.template()})
            if dice.maybe(0.4):
                pod_sets[-1]["topologyRequest"] = {
                    "policy": dice.one("Required", "Preferred", "Unconstrained"),
                    "level": dice.one(*LEVELS),
                }
        if dice.maybe(0.1):
            pod_sets[0]["minCount"] = 1
        spec = {"podSets": pod_sets, "active": dice.maybe(0.9)}
        if dice.maybe(0.5):
            spec["queueName"] = dice.one(QUEUE, "nosuch")
        if dice.maybe(0.3):
            spec["priority"] = dice.one(-(2**31), 0, MOST)
        if dice.maybe(0.1):
            spec["maximumExecutionTimeSeconds"] = dice.one(1, 60, MOST)
        found = {"spec": spec}
        if dice.maybe(0.7):
            found["status"] = self.workload_status(names)
        number = self.near_number(resources.JOBS)
        if number is not None and dice.maybe(0.7):
            found["name"] = workload_name("Job", name_of(number), uid_of(number))
            reference = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": name_of(number),
                "uid": uid_of(number),
                "controller": True,
            }
            found["owners"] = [reference]
        return found

    def workload_status(self, names=("main",)):
        """Any status that the CRD takes."""
        dice = self.dice
        status = {
            "conditions": [
                {
                    "type": each,
                    "status": dice.one("True", "False", "Unknown"),
                    "reason": dice.one("Admitted", "Preempted", "PodsReadyTimeout", "X"),
                    "message": dice.text(),
                    "lastTransitionTime": dice.one(BORN, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
                }
                for each in (
                    "QuotaReserved",
                    "Admitted",
                    "PodsReady",
                    "Evicted",
                    "Preempted",
                    "Finished",
                    "Requeued",
                    "Deactivated",
                )
                if dice.maybe(0.3)
            ]
        }
        if dice.maybe(0.6):
            status["admission"] = {"podSetAssignments": [self.assignment(name) for name in names]}
            if dice.maybe(0.6):
                status["admission"]["clusterQueue"] = dice.one(QUEUE, "nosuch", self.near(resources.CLUSTER_QUEUES))
        if dice.maybe(0.15):
            status["nomination"] = {
                "time": BORN,
                "clusterQueue": dice.one(QUEUE, "nosuch"),
                "strategy": dice.one("LeastPriority", "IncrementalMinimal"),
                "victims": [
                    {
                        "kind": dice.one("Workload", "Pod"),
                        "namespace": "wild",
                        "name": dice.one(self.near(resources.PODS), self.near(resources.WORKLOADS)),
                        "uid": "u",
                        **({"priority": dice.one(-(2**31), MOST)} if dice.maybe(0.5) else {}),
                        **({"domains": [[dice.label()], ["b0", "r0", NODES[0]]]} if dice.maybe(0.3) else {}),
                    }
                    for _ in range(1 + dice.many(2, 40))
                ],
                "podSetAssignments": [self.assignment(name) for name in names],
            }
        if dice.maybe(0.2):
            status["requeueState"] = {
                "count": dice.count(),
                "requeueAt": dice.one(BORN, "9999-12-31T23:59:59Z", "2026-11-21T00:00:00.123456+14:00"),
            }
        if dice.maybe(0.1):
            status["reclaimablePods"] = [{"name": name, "count": dice.count()} for name in names]
        if dice.maybe(0.1):
            status["admissionChecks"] = [
                {
                    "name": "check",
                    "state": dice.one("Pending", "Ready", "Retry", "Rejected"),
                    "lastTransitionTime": BORN,
                    "message": dice.text(),
                }
            ]
        if dice.maybe(0.1):
            status["unhealthyNodes"] = [{"name": dice.one(*NODES, "nowhere"), "since": BORN}]
        if dice.maybe(0.1):
            status["accumulatedPastExecutionTimeSeconds"] = dice.count()
        return status

    def assignment(self, name):
        dice = self.dice
        found = {"name": name}
        if dice.maybe(0.8):
            found["flavors"] = {
                dice.choice((*NAMES, *RARE_NAMES)): dice.one(QUEUE, "nosuch", self.near(resources.RESOURCE_FLAVORS))
                for _ in range(dice.many(3, 64))
            }
        if dice.maybe(0.6):
            found["resourceUsage"] = {dice.choice(NAMES): self.stored_quantity() for _ in range(dice.many(3))}
        if dice.maybe(0.9):
            found["count"] = dice.count()
        if dice.maybe(0.7):
            found["topologyAssignment"] = self.topology_assignment()
        return found

    def topology_assignment(self):
        dice = self.dice

        def count():
            return dice.one(1, 1, 2, 1_000_000)

        if dice.maybe(0.6):
            slices = [
                {
                    "nodeLabels": {
                        BLOCK: "b0",
                        RACK: dice.one("r0", "r1", dice.label()),
                        HOST: dice.one(*NODES, "nowhere", dice.label()),
                    },
                    "count": count(),
                }
                for _ in range(dice.many(4, 500))
            ]
            if slices and dice.maybe(0.2):
                slices[0]["nodeLabels"] = {dice.choice(LABEL_KEYS): dice.label() for _ in range(dice.randint(1, 3))}
            return {"slices": slices, **({"levels": list(LEVELS)} if dice.maybe(0.7) else {})}
        levels = list(dice.one(LEVELS, LEVELS, (HOST,), (RACK, HOST)))
        groups = []
        for _ in range(dice.many(2, 50)):
            names = [dice.one("0", "1", "2", "3", "nowhere", "x" * 63, "\u0661") for _ in range(1 + dice.many(3, 1000))]
            counts = {"count": count()} if dice.maybe(0.5) else {"counts": [count() for _ in names]}
            groups.append(
                {
                    "values": ["b0", "r0"][: len(levels) - 1],
                    "prefix": dice.one("wild-", "", "x" * 63),
                    "names": names,
                    **counts,
                }
            )
        return {"levels": levels, "groups": groups}


def workload_status(seed, number):
    """A status for a Workload that the controller made."""
    maker = _Maker(seed, number, "status", resources.WORKLOADS)
    return maker.workload_status(maker.dice.one(("main",), ("main",), ("r0", "r1"), ("leader", "workers")))


def anything(dice):
    """Whatever stands in a JSON document that the API server stored."""
    return dice.choice(
        (
            lambda: None,
            lambda: dice.maybe(0.5),
            dice.number,
            lambda: dice.choice((1.5, 1e308, -1e-308, 1.0, 9.3e18)),
            dice.text,
            dice.quantity,
            list,
            dict,
            lambda: [None, {}, [], ""],
            lambda: {"": None, "\u0000": {}, "metadata": [], "annotations": 1},
            lambda: _nested(dice.one(10, 100)),
            lambda: [0] * dice.one(100, 5000),
            lambda: {f"k{number}": "v" for number in range(dice.one(10, 1000))},
        )
    )()


def _nested(depth):
    found = 1
    for _ in range(depth):
        found = [{"spec": found}]
    return found

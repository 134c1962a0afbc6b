"""A made-up cluster of any size as `topogate snapshot` writes it: blocks, racks, hosts, teams that run and wait.

What is in it follows from the seed alone. ``python -m support.web_cluster FILE BLOCKS RACKS HOSTS`` writes one.
"""

import json
import random
import sys
from datetime import UTC, datetime
from pathlib import Path

from crds.names import workload_name
from localcluster.kubelets import publish
from localcluster.kubelets.kubelet import PlayedKubelet
from localcluster.kubelets.specs import build, parse_kubelet, parse_machine
from localcluster.nodes import BLOCK_LABEL, HOSTNAME_LABEL, RACK_LABEL, Fleet

DOMAIN, API, GPU = "kueue.x-k8s.io", "topogate.dev/v1alpha1", "nvidia.com/gpu"
DEVICES = "resource.k8s.io/v1"
LEVELS = [BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL]
MACHINE, KUBELET = "2 sockets / 4 NUMA / 128 cores / 8 GPUs", "best-effort, pod"
TEAMS = {
    "language": ["pretrain-70b", "sft-mix", "rlhf-ppo", "distill-8b"],
    "vision": ["vit-huge", "video-diff", "segment-any"],
    "speech": ["asr-large", "tts-multi"],
    "research": ["ablation", "sweep-lr", "probe", "toy-moe"],
}
NOW = 1_795_000_000.0
HOUR = 3600.0


def stamp(at):
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind, status, reason, message, at):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(at)}


class Made:
    """The objects; ``where`` is the free amount of each host that pods are put on."""

    def __init__(self, blocks, racks, hosts, *, seed=1, now=NOW, machines=0):
        self.random, self.now, self.items = random.Random(seed), now, []
        fleet = Fleet(blocks=blocks, racks=racks, hosts=hosts, cpu="256", memory="2Ti")
        self.nodes = list(fleet.objects())
        self.free = {node["metadata"]["name"]: 8 for node in self.nodes}
        self.labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in self.nodes}
        self.machines = set(list(self.free)[:machines])
        self.numbers = 0
        self.used = dict.fromkeys(TEAMS, 0)
        self.zones = {name: [2, 2, 2, 2] for name in self.machines}

    def objects(self, load=0.86):
        self._out()
        total = len(self.nodes) * 8
        self._configuration(total)
        serving = list(self.free)[:: max(9, len(self.free) // 40)]
        for at, name in enumerate(serving[: max(2, len(self.free) // 24)]):
            self._foreign(name, 1 + at % 2)
        names, at = list(self.free), 0
        while at < len(names) and sum(self.free.values()) > total * (1 - load):
            at = self._next(names, at)
        for index in range(max(3, len(self.nodes) // 220)):
            self._waiting(index)
        flexes = [self._flex(name) for name in sorted(self.machines)]
        return [*self.nodes, *self.items, *flexes]

    def _out(self):
        for node in self.random.sample(self.nodes, max(1, len(self.nodes) // 90)):
            name = node["metadata"]["name"]
            if name in self.machines:
                continue
            if self.random.random() < 0.5:
                node["spec"]["unschedulable"] = True
            else:
                node["status"]["conditions"][0]["status"] = "False"
            if self.random.random() < 0.7:
                self.free[name] = 0

    def _configuration(self, total):
        flavor = {"nodeLabels": {"cloud-provider.com/node-group": "tas"}, "topology": {"levels": LEVELS}}
        self._add(API, "ResourceFlavor", "tas", flavor)
        share = total // len(TEAMS)
        for team in TEAMS:
            self._add("v1", "Namespace", team, {})
            resources = [{"name": GPU, "nominalQuota": str(share)}, {"name": "cpu", "nominalQuota": str(share * 32)}]
            groups = [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": "tas", "resources": resources}]}]
            spec = {"cohortName": "everybody", "namespaceSelector": {}, "resourceGroups": groups}
            self._add(API, "ClusterQueue", team, spec)
            self._add(API, "LocalQueue", "default", {"clusterQueue": team}, namespace=team)

    def _add(self, version, kind, name, spec, *, status=None, **meta):
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "uid": f"{kind}-{name}", **meta}}
        self.items.append(body | ({"spec": spec} if spec else {}) | ({"status": status} if status else {}))

    def _name(self):
        team = self.random.choices(list(TEAMS), weights=[5, 3, 1.6, 2])[0]
        self.numbers += 1
        return team, f"{self.random.choice(TEAMS[team])}-{self.numbers}"

    def _next(self, names, at):
        """Put one job on the hosts from here on; returns where the next one begins."""
        pods = self.random.choices([1, 2, 4, 8, 16, 32, 64], weights=[4, 5, 6, 6, 5, 3, 1])[0]
        pods = min(pods, max(1, len(names) // 6))
        each = self.random.choices([8, 4, 2, 1], weights=[10, 2, 1.2, 1])[0] if pods <= 8 else 8
        if self.random.random() < 0.16:
            at += self.random.choice([1, 1, 2, 4])
        where = []
        while at < len(names) and len(where) < pods:
            name = names[at]
            room = self.free[name] // each
            take = min(room, pods - len(where))
            where += [name] * take
            self.free[name] -= each * take
            if len(where) < pods or self.random.random() < 0.75:
                at += 1
        if where:
            self._running(where, each)
        return at

    def _running(self, where, each):
        team, name = self._name()
        age = self.random.choice([0.2, 0.6, 2, 5, 11, 30, 70, 200, 400]) * HOUR * (0.6 + self.random.random())
        starting = self.random.random() < 0.05
        created, admitted = self.now - age - 600 * self.random.random(), self.now - (40 if starting else age)
        slices = [
            {"nodeLabels": {level: self.labels[host][level] for level in LEVELS}, "count": where.count(host)}
            for host in dict.fromkeys(where)
        ]
        assigned = {
            "name": "main",
            "flavors": {GPU: "tas", "cpu": "tas"},
            "count": len(where),
            "resourceUsage": {GPU: str(each * len(where)), "cpu": str(each * 16 * len(where))},
            "topologyAssignment": {"levels": LEVELS, "slices": slices},
        }
        conditions = [
            condition("QuotaReserved", "True", "Admitted", "placed", admitted - 1),
            condition("Admitted", "True", "Admitted", f"{len(where)} pods", admitted),
        ]
        if not starting:
            conditions.append(condition("PodsReady", "True", "PodsReady", "all pods run", admitted + 45))
        self.used[team] += each * len(where)
        work = self._job(
            team,
            name,
            (len(where), each),
            created,
            {"admission": {"clusterQueue": team, "podSetAssignments": [assigned]}, "conditions": conditions},
            suspend=False,
        )
        for rank, host in enumerate(where):
            if starting and rank % 3:
                continue
            self._pod(team, f"{name}-{rank}", host, each, work=work, owner=("Job", name), rank=rank)

    def _job(self, team, name, size, created, status, *, suspend, priority=0):
        pods, each = size
        uid, work = f"uid-{name}", workload_name("Job", name, f"uid-{name}")
        container = {
            "name": "main",
            "resources": {
                "limits": {GPU: str(each), "cpu": str(each * 16)},
                "requests": {GPU: str(each), "cpu": str(each * 16)},
            },
        }
        annotations = {f"{DOMAIN}/require-topology": BLOCK_LABEL}
        template = {
            "metadata": {"annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        spec = {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": template,
            "suspend": suspend,
        }
        meta = {"namespace": team, "creationTimestamp": stamp(created)}
        self._add(
            "batch/v1", "Job", name, spec, **meta, labels={f"{DOMAIN}/queue-name": "default"}, annotations=annotations
        )
        self.items[-1]["metadata"]["uid"] = uid
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
        pod_sets = [
            {
                "name": "main",
                "count": pods,
                "template": template,
                "topologyRequest": {"policy": "Required", "level": BLOCK_LABEL},
            }
        ]
        self._add(
            API,
            "Workload",
            work,
            {"queueName": "default", "priority": priority, "podSets": pod_sets},
            status=status,
            **meta,
            ownerReferences=[owner],
        )
        return work

    def _waiting(self, index):
        team, name = self._name()
        pods = self.random.choice([32, 64, 128])
        message = (
            f"block b{1 + index % 3} could take {pods // 4 * (1 + index % 3)} of {pods} pods; nvidia.com/gpu is short"
        )
        at = self.now - (index + 1) * 1300
        status = {"conditions": [condition("QuotaReserved", "False", "DoesNotFit", message, at + 5)]}
        self._job(team, name, (pods, 8), at, status, suspend=True, priority=100 * (index % 3))

    def _foreign(self, host, gpus):
        if self.free[host] >= gpus:
            self.free[host] -= gpus
            self.numbers += 1
            self._pod(
                "inference", f"chat-{self.numbers}", host, gpus, work="", owner=("ReplicaSet", "chat-7d4f"), rank=None
            )

    def _pod(self, team, name, host, gpus, *, work, owner, rank):
        annotations = {f"{DOMAIN}/topology-workload": work, f"{DOMAIN}/topology-podset": "main"} if work else {}
        if host in self.machines and (zones := self._take(host, gpus)):
            annotations["topogate.dev/numa-placement-observed"] = json.dumps(zones)
        labels = {"batch.kubernetes.io/job-completion-index": str(rank)} if rank is not None else {}
        uid = f"uid-{owner[1]}"
        reference = {
            "apiVersion": "batch/v1" if work else "apps/v1",
            "kind": owner[0],
            "name": owner[1],
            "uid": uid,
            "controller": True,
        }
        limits = {GPU: str(gpus), "cpu": str(gpus * 16), "memory": f"{gpus * 128}Gi"}
        spec = {"nodeName": host, "containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]}
        if work:
            spec["nodeSelector"] = {level: self.labels[host][level] for level in LEVELS}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": team,
                "uid": f"uid-{name}",
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": [reference],
            },
            "spec": spec,
            "status": {"phase": "Running"},
        }
        self.items.append(body)

    def _take(self, host, gpus):
        """Zones for a pod: as few as may be, but for the odd one that shows what is red."""
        left = self.zones[host]
        order = sorted(range(4), key=lambda zone: -left[zone])
        if gpus == 2 and self.random.random() < 0.6:
            order = [0, 3, 1, 2]
            take = {zone: 1 for zone in order[:2] if left[zone]}
        else:
            take, need = {}, gpus
            for zone in order if gpus < 8 else range(4):
                if need and left[zone]:
                    take[zone] = min(need, left[zone])
                    need -= take[zone]
        for zone, count in take.items():
            left[zone] -= count
        return [
            {"zone": f"node-{zone}", "amount": {GPU: str(n), "cpu": str(n * 16), "memory": f"{n * 128}Gi"}}
            for zone, n in sorted(take.items())
        ]

    def _flex(self, name):
        kubelet = PlayedKubelet(build(parse_machine(MACHINE + " / 4 NICs / 2Ti"), name), parse_kubelet(KUBELET))
        ready = [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}]
        status = publish.flex_topo_status(kubelet, {}) | {"conditions": ready}
        return {
            "apiVersion": API,
            "kind": "FlexTopo",
            "metadata": {"name": name, "uid": f"flex-{name}"},
            "spec": publish.flex_topo_spec(kubelet.hardware),
            "status": status,
        }


def items(blocks, racks, hosts, **wish):
    return Made(blocks, racks, hosts, **wish).objects()


def claimed(made):
    """The same, and pods of the first machine have devices of claims: GPUs that tell zones, partitions, a NIC."""
    host = next(one["metadata"]["name"] for one in made if one["kind"] == "FlexTopo")
    pods = [one["metadata"] for one in made if one["kind"] == "Pod" and one["spec"]["nodeName"] == host]
    gpus = [{"name": f"gpu-{at}", "attributes": {"numaNode": {"int": at // 2}}} for at in range(8)]
    gpus[6]["taints"] = [{"key": "example.com/broken", "value": "yes", "effect": "NoSchedule"}]
    counted = [
        {"counterSet": "gpu-8", "counters": {"memory": {"value": amount}}} for amount in ("80Gi", "40Gi", "40Gi")
    ]
    parts = [{"name": f"mig-{at}", "consumesCounters": [one]} for at, one in enumerate(counted)]
    sets = [{"name": "gpu-8", "counters": {"memory": {"value": "80Gi"}}}]
    shared = {"allowMultipleAllocations": True, "capacity": {"bandwidth": {"value": "100G"}}}
    found = [
        _slice(host, "gpu.example.com", 0, 1, {"devices": gpus}),
        *(
            _slice(host, "mig.example.com", at, 2, one)
            for at, one in enumerate(({"sharedCounters": sets}, {"devices": parts}))
        ),
        _slice(host, "nic.example.com", 0, 1, {"devices": [{"name": "nic-0", **shared}]}),
    ]
    held = [("gpu.example.com", "gpu-0"), ("gpu.example.com", "gpu-3"), ("mig.example.com", "mig-1")]
    for device, pod in zip(held, (pods[0], pods[-1], pods[-1]), strict=True):
        found.append(_claim(pod["namespace"], f"{pod['name']}-{device[1]}", host, device, [pod["name"]]))
    share = {"shareID": "5f0c", "consumedCapacity": {"bandwidth": "10G"}}
    found.append(_claim(pods[0]["namespace"], "kept", host, ("gpu.example.com", "gpu-5"), []))
    found.append(_claim(pods[0]["namespace"], "wire", host, ("nic.example.com", "nic-0"), [pods[0]["name"]], **share))
    return [*made, *found]


def _slice(host, driver, number, of, more):
    pool = {"name": host, "generation": 1, "resourceSliceCount": of}
    spec = {"driver": driver, "nodeName": host, "pool": pool, **more}
    name = f"{host}-{driver}-{number}"
    return {"apiVersion": DEVICES, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def _claim(namespace, name, host, device, pods, **share):
    result = {"request": "one", "driver": device[0], "pool": host, "device": device[1], **share}
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    return {
        "apiVersion": DEVICES,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": users},
    }


if __name__ == "__main__":
    sizes = [int(one) for one in sys.argv[2:5]]
    machines = int(sys.argv[5]) if len(sys.argv) > 5 else 24
    made = {"apiVersion": "v1", "kind": "List", "items": items(*sizes, machines=machines)}
    Path(sys.argv[1]).write_text(json.dumps(made))

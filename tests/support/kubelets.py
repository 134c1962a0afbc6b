"""The recorded admissions (tests/data/numa.jsonl.gz), played to the simulated kubelet."""

import gzip
import json
from pathlib import Path

from localcluster.kubelets.hardware import (
    PlayedCore,
    PlayedDevice,
    PlayedHardware,
    PlayedSettings,
    PlayedZone,
    parse_cpu_list,
)
from localcluster.kubelets.kubelet import PlayedKubelet
from localcluster.kubelets.pods import PlayedPod, make_container

VECTORS = Path(__file__).parents[1] / "data" / "numa.jsonl.gz"


def hardware(machine):
    zones = []
    for zone in machine["numa"]:
        caches = zone.get("uncore") or [None] * len(zone["cores"])
        cores = tuple(PlayedCore(tuple(cpus), cache) for cpus, cache in zip(zone["cores"] or (), caches, strict=True))
        pages = {"hugepages-1Gi": zone["hugepages_1gi"] << 30} if zone.get("hugepages_1gi") else {}
        zones.append(
            PlayedZone(
                zone["id"],
                zone["socket"],
                cores,
                zone["memory_bytes"],
                zone["reserved_memory_bytes"],
                pages,
                tuple(zone["distances"]),
            )
        )
    devices = {
        resource: tuple(PlayedDevice(d["id"], tuple(d.get("numa") or ()), d["healthy"]) for d in devices)
        for resource, devices in machine["devices"].items()
    }
    return PlayedHardware(tuple(zones), machine["sockets"], parse_cpu_list(machine["reserved_cpus"]), devices)


def settings(kubelet):
    return PlayedSettings(
        kubelet["topology_manager_policy"],
        kubelet["topology_manager_scope"],
        static_cpu=kubelet["cpu_manager_policy"] == "static",
        static_memory=kubelet["memory_manager_policy"] == "Static",
        cpu_options=frozenset(kubelet.get("cpu_manager_policy_options", ())),
        topology_options=frozenset(kubelet.get("topology_manager_policy_options", ())),
    )


def make_pod(pod):
    return PlayedPod(
        pod["name"],
        tuple(
            make_container(c["name"], c["kind"], c.get("requests") or {}, c.get("limits") or {})
            for c in pod["containers"]
        ),
    )


def replay(case):
    kubelet = PlayedKubelet(hardware(case["machine"]), settings(case["kubelet"]))
    for event in case["history"] or ():
        if event["op"] == "admit":
            kubelet.admit_pod(make_pod(event["pod"]))
        else:
            kubelet.remove(event["ref"])
    return kubelet


def cases():
    with gzip.open(VECTORS, "rt") as lines:
        return [json.loads(line) for line in lines]

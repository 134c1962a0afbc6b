"""A real kubelet's configuration and command line, from what is said of its node.

Rules
- Nothing of the host is to be changed: no cgroups, no iptables rules, no kernel settings, no listening ports.
- The machine has no disk and no memory that could run short, so nothing is evicted.
"""

from typing import Any, Final

from localcluster.kubelets.hardware import PlayedHardware, PlayedSettings, cpu_list
from localcluster.kubelets.specs import build, parse_kubelet, parse_machine
from localcluster.real.layout import RealNode

HOME: Final = "/var/lib/kubelet"  # as the kubelet sees its own directory: device plugins look nowhere else
# "0%" switches a threshold off; left out, the default would hold.
_NEVER = dict.fromkeys(("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%")


def configuration(node: RealNode) -> dict[str, Any]:
    """The KubeletConfiguration. ValueError where machine or kubelet are not understood."""
    settings = parse_kubelet(node.kubelet)
    hardware = build(parse_machine(node.machine), node.name)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},  # nobody can ask: it does not listen
        "enableServer": False,
        "healthzPort": 0,
        "containerRuntimeEndpoint": f"unix://{HOME}/runtime.sock",
        "volumePluginDir": f"{HOME}/volume-plugins",
        "podLogsDir": f"{HOME}/pod-logs",
        "resolvConf": "",
        "clusterDNS": ["10.96.0.10"],  # nobody asks it; without one each pod would get a warning
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": False,
        # With it the kubelet goes on where it cannot write kernel settings: /proc/sys is read-only for it (`enter`).
        "featureGates": {"KubeletInUserNamespace": True},
        "imageGCHighThresholdPercent": 100,  # there is nothing to collect
        "containerLogMonitorInterval": "24h",  # nor to rotate
        "maxPods": node.pods,
        "evictionHard": _NEVER,
        "registerWithTaints": [dict(taint) for taint in node.taints],
        "nodeStatusUpdateFrequency": "2s",  # devices that come, go or fall sick are seen soon; written where changed
        "nodeStatusReportFrequency": "5m",
        "kubeAPIQPS": 500,  # what is measured is not to be this client's limit
        "kubeAPIBurst": 1000,
        "eventRecordQPS": 0,
        "serializeImagePulls": False,
        # Last, for it may replace the feature gates above.
        **_managers(settings, hardware),
    }


def _managers(settings: PlayedSettings, hardware: PlayedHardware) -> dict[str, Any]:
    reserved = {zone.id: zone.reserved_memory for zone in hardware.zones if zone.reserved_memory}
    found: dict[str, Any] = {
        "topologyManagerPolicy": settings.policy,
        "topologyManagerScope": settings.scope,
        "topologyManagerPolicyOptions": dict.fromkeys(sorted(settings.topology_options), "true"),
        "reservedSystemCPUs": cpu_list(hardware.reserved_cpus),
        "systemReserved": {"memory": str(sum(reserved.values()))},
    }
    if settings.static_cpu:
        found["cpuManagerPolicy"] = "static"
        found["cpuManagerPolicyOptions"] = dict.fromkeys(sorted(settings.cpu_options), "true")
        # Options that are not stable yet need these gates.
        if settings.cpu_options:
            found["featureGates"] = {
                "KubeletInUserNamespace": True,
                "CPUManagerPolicyAlphaOptions": True,
                "CPUManagerPolicyBetaOptions": True,
            }
    if settings.static_memory:
        # The manager starts only where this is exactly what is kept for the system.
        found["memoryManagerPolicy"] = "Static"
        found["reservedMemory"] = [
            {"numaNode": zone, "limits": {"memory": str(size)}} for zone, size in reserved.items()
        ]
    return found


def arguments(node: RealNode) -> list[str]:
    """The kubelet's arguments, with paths as it sees them."""
    labels = ",".join(f"{key}={value}" for key, value in node.labels.items())
    return [
        f"--config={HOME}/config.yaml",
        f"--kubeconfig={HOME}/kubeconfig",
        f"--root-dir={HOME}",
        f"--hostname-override={node.name}",
        *([f"--node-labels={labels}"] if labels else []),
        "--v=2",
    ]

"""What the agent's process is told: those of Topogate's settings that concern it, checked by whoever started it."""

from typing import Literal

import msgspec


class AgentSettings(msgspec.Struct, frozen=True):
    """By the names in `crds.settings`, which says what each of them is; there are no defaults but there."""

    agent_node_name: str
    agent_sysfs: str
    agent_proc: str
    agent_kubelet_directory: str
    agent_kubelet_config: str
    agent_pod_resources_socket: str
    agent_core_group_size: int
    agent_publish_topology: Literal["auto", "always", "never"]
    agent_observe_pods: bool
    agent_hardware_seconds: float
    agent_poll_seconds: float
    agent_watch_seconds: float
    agent_write_seconds: float
    bind_address: str
    health_port: int
    metrics_port: int
    metrics_authentication: Literal["none", "kubernetes"]
    log_level: str
    log_format: str

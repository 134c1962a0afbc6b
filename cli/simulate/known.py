"""What the files of a simulation hold beside jobs, as the controller would remember it: it reads what jobs ask for.

Objects that tell of devices and of volumes may be in files of jobs too. Without a recorded cluster they tell of the
nodes that were generated.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from cli.cluster import cluster_snapshot
from cli.cluster import dump as dumps
from cli.cluster.dump import Dump, FoundObject, objects_in_text
from cli.output import Failure
from cli.simulate.job_files import JobFile
from crds.constants import Keys
from crds.settings import Settings
from kube import objects
from simulator.model import NAMESPACE
from ungater import kinds
from ungater.cache.cache import Cache

BESIDE_JOBS: Final = frozenset(
    {
        *(("resource.k8s.io", kind) for kind in ("DeviceClass", "DeviceTaintRule", "ResourceSlice")),
        *(("resource.k8s.io", kind) for kind in ("ResourceClaimTemplate", "ResourceClaim")),
        *(("", "PersistentVolumeClaim"), ("", "PersistentVolume"), ("storage.k8s.io", "StorageClass")),
    }
)
NAMESPACED: Final = frozenset({"ResourceClaimTemplate", "ResourceClaim", "PersistentVolumeClaim"})


class SimulationInput(msgspec.Struct, frozen=True):
    """``files``: of the cluster. ``manifests``: by file of jobs, what is in it."""

    keys: Keys
    files: tuple[str, ...]
    dump: Dump
    cache: Cache
    manifests: Mapping[str, Sequence[FoundObject]]


def known(
    files: Sequence[str], keys: Keys, jobs: Sequence[JobFile] = (), nodes: Iterable[objects.Node] = ()
) -> SimulationInput:
    """All that these files say. ``nodes``: those that are there without a file.

    Raises:
        Failure: a file cannot be read, or an object in it.
    """
    dump = dumps.read(files)
    # Before the cache is made, which takes its nodes from the dump.
    dump.of(kinds.NODES).extend(nodes)
    manifests = {file.name: list(objects_in_text(file.name, file.content)) for file in jobs}
    for one in (one for found in manifests.values() for one in found):
        if (one.api_group, one.kind) in BESIDE_JOBS:
            meta = one.body.get("metadata")
            if one.kind in NAMESPACED and isinstance(meta, dict) and not meta.get("namespace"):
                # It says not where it is made.
                dump.add(replace(one, body={**one.body, "metadata": {**meta, "namespace": NAMESPACE}}))
            else:
                dump.add(one)
    try:
        # Whole: a figure from half a cluster looks like any other figure.
        cache = cluster_snapshot.cache_of(dump, Settings(domain=keys.domain), whole=True)
    except (ValueError, Failure) as error:
        raise Failure(f"{', '.join([*files, *manifests])}: {error}") from None
    return SimulationInput(keys, tuple(files), dump, cache, manifests)

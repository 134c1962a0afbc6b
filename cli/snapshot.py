"""``topogate snapshot``: the objects that decide placement, from the live cluster into one file.

What it writes is a List as ``kubectl get -o yaml`` makes it, so that both are read alike (`cli.cluster.dump`). What
programs in pods are told (env, command, args) is left out, and so is who wrote which field: it decides nothing, and may
be secret.
"""

import asyncio
import gzip
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
import yaml

from cli.cluster.cluster_snapshot import listed
from cli.connected import connected
from cli.output import Context, Failure, Kubeconfig, progress, stderr
from kube.client import Client
from ungater import kinds

PRIVATE: Final = frozenset({"env", "envFrom", "command", "args"})
APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
Json = dict[str, Any]


def command(
    out: Annotated[
        str,
        typer.Option("--out", metavar="FILE", help="Where to: *.yaml or *.json, with .gz packed; - is stdout (YAML)."),
    ] = "-",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Write what decides placement into one file, for topogate simulate and defrag.

    Nodes, pods, jobs, queues, flavors, workloads, budgets, volumes, devices and their claims, and the insides of
    nodes, without what programs are told (env, command, args). Reads the cluster, changes nothing.
    """
    if out != "-" and Path(out.removesuffix(".gz")).suffix not in {".yaml", ".yml", ".json"}:
        raise Failure(f"--out {out}: expected a name that ends in .yaml or .json, or in one of these and .gz")
    items = objects_of(kubeconfig, context)
    listing = {"apiVersion": "v1", "kind": "List", "items": items}
    if ".json" in out:
        text = msgspec.json.encode(listing)
    else:
        # The dumper in C is many times as fast, and PyYAML may be built without it.
        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        text = yaml.dump(listing, Dumper=dumper, sort_keys=False).encode()
    if out == "-":
        sys.stdout.write(text.decode())
        return
    try:
        # Without a time in it, the same cluster gives the same file.
        Path(out).write_bytes(gzip.compress(text, mtime=0) if out.endswith(".gz") else text)
    except OSError as error:
        raise Failure(f"cannot write {out}: {error.strerror}") from error
    stderr().print(f"{len(items)} objects in {out}", soft_wrap=True)


def objects_of(kubeconfig: str | None, context: str | None) -> list[Json]:
    """All that a snapshot holds, from the live cluster. Failure where it cannot be read."""
    with progress("reading the cluster"):
        return connected(_items, kubeconfig, context)


async def _items(client: Client) -> list[Json]:
    # Each list is consistent in itself, not with the others. A pod may be in before its node.
    lists = [listed(client, kind, dict[str, Any]) for kind in kinds.KINDS]
    made: list[Json] = []
    for kind, (resource, items) in zip(kinds.KINDS, await asyncio.gather(*lists), strict=True):
        for item in items or ():
            if kind in kinds.WITHOUT_TEMPLATE:
                item["spec"] = {key: value for key, value in item.get("spec", {}).items() if key != "template"}
            made.append({"apiVersion": resource.api_version, "kind": resource.kind, **stripped(item)})
    return made


def stripped(item: Json) -> Json:
    """An object without what decides nothing."""
    meta = {key: value for key, value in item.get("metadata", {}).items() if key != "managedFields"}
    if "annotations" in meta:
        # kubectl apply keeps the whole manifest there, with the env that is left out below.
        meta["annotations"] = {key: value for key, value in meta["annotations"].items() if key != APPLIED}
    return {**_drop_private(item), "metadata": meta}


def _drop_private(value: Any) -> Any:
    """Without private fields of containers, wherever there are containers."""
    if isinstance(value, list):
        return [_drop_private(one) for one in value]
    if not isinstance(value, dict):
        return value
    # At any depth: templates lie in templates, as in a JobSet's replicated jobs.
    found = {key: _drop_private(one) for key, one in value.items()}
    for name in ("containers", "initContainers", "ephemeralContainers"):
        if isinstance(found.get(name), list):
            found[name] = [{k: v for k, v in one.items() if k not in PRIVATE} for one in found[name]]
    return found

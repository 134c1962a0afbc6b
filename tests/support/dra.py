"""ResourceSlices, classes and claims in few words, and what a node's devices are given for them."""

from engine.claims.allocate import allocate, prepare
from engine.claims.budget import Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting.count import count
from engine.claims.features import DEFAULT
from engine.claims.hardware import NodeHardware
from engine.claims.in_use import InUse, Use
from engine.claims.pools import Inventory
from engine.claims.read.claims import read_claim, read_class, read_node
from engine.claims.read.slices import read_slice
from engine.claims.searching.requests import RequestContext

DRIVER = "d.example.com"
KINDS = {bool: "bool", int: "int", str: "string"}


def device(name, *, capacity=None, uses=None, **fields):
    """Attributes are keywords in lower case; other fields of a device are as in the API."""
    api = {
        "taints",
        "nodeName",
        "allNodes",
        "nodeSelector",
        "allowMultipleAllocations",
        "bindingConditions",
        "bindsToNode",
    }
    made = {"name": name, **{key: value for key, value in fields.items() if key in api}}
    made["attributes"] = {key: {KINDS[type(value)]: value} for key, value in fields.items() if key not in api}
    if capacity:
        made["capacity"] = {
            key: value if isinstance(value, dict) else {"value": value} for key, value in capacity.items()
        }
    if uses:
        counters = {key: {"value": value} for key, value in uses.items()}
        made["consumesCounters"] = [{"counterSet": "set", "counters": counters}]
    return made


def resource_slice(*devices, name="s", pool="p", driver=DRIVER, generation=1, slices=1, **fields):
    """One slice, of node n unless it says otherwise."""
    where = (
        {} if fields.keys() & {"allNodes", "nodeSelector", "perDeviceNodeSelection", "nodeName"} else {"nodeName": "n"}
    )
    of_pool = {"name": pool, "generation": generation, "resourceSliceCount": slices}
    spec = {"driver": driver, "pool": of_pool, "devices": list(devices), **where, **fields}
    return {"metadata": {"name": name}, "spec": spec}


def counters(**amounts):
    """The slice with a pool's counter set."""
    made = {"name": "set", "counters": {key: {"value": value} for key, value in amounts.items()}}
    return resource_slice(name="counters", slices=2, sharedCounters=[made])


def ask(name="r", count=1, *selectors, **fields):
    """A request for devices of class c."""
    made = {"deviceClassName": "c", "allocationMode": "ExactCount", "count": count, **fields}
    if count is None:
        made |= {"allocationMode": "All", "count": None}
    made["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    return {"name": name, "exactly": made}


def first(name, *alternatives):
    """A request with alternatives."""
    return {"name": name, "firstAvailable": [{**one["exactly"], "name": one["name"]} for one in alternatives]}


def claim(*requests, name="claim", constraints=()):
    """One claim."""
    return {
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests), "constraints": list(constraints)}},
    }


def device_class(name="c", *selectors):
    """One class."""
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": text}} for text in selectors]}}


def taken(*names, pool="p", driver=DRIVER):
    """Devices in use."""
    return InUse.from_uses(Use((driver, pool, name)) for name in names)


def hardware(slices, *, labels=None, features=DEFAULT, node="n"):
    """What a node reaches."""
    return NodeHardware.for_node(
        Inventory.from_slices(map(read_slice, slices)), read_node(node, labels or {}), features
    )


def ready(slices, claims, *, classes=None, budget=None, **fields):
    """Claims made ready for a node."""
    known = {one.name: one for one in map(read_class, classes or [device_class()])}
    budget = budget or Budget()
    return prepare(
        hardware(slices, **fields), list(map(read_claim, claims)), RequestContext(known, Selectors(), budget)
    ), budget


def given(slices, *claims, in_use=None, **fields):
    """``request=device`` of every claim, or the outcome and why."""
    prepared, budget = ready(slices, claims, **fields)
    found = allocate(prepared, in_use or InUse(), budget)
    if not found.allocated:
        return f"{found.outcome}: {found.message}"
    return " ".join(f"{one.request}={one.device[2]}" for claimed in found.claims for one in claimed)


def fitting(slices, *claims, in_use=None, limit=16, **fields):
    """How many pods fit."""
    prepared, budget = ready(slices, claims, **fields)
    return len(count(prepared, in_use or InUse(), limit, budget).pods)

"""What ``topogate web`` knows of a live cluster for questions: all that the controller does, by its own informers."""

from dataclasses import fields

from cli.cluster.dump import Dump
from cli.web.running import reading
from clock import SYSTEM
from crds.constants import Keys
from kube.client import Client
from kube.connection.config import Connection
from ungater.optional import OptionalInformer
from web.live import Live

# Not of a cluster that is watched; budgets, and Kueue's classes of workloads, which no picture and no question needs.
LEFT_OUT = {"ignored", "budgets", "workload_classes"}


async def test_every_kind_that_the_controller_reads_is_read_for_questions_too(monkeypatch):
    """LimitRanges and RuntimeClasses were not: a Job was said to fit whose pods, as they are made, do not."""
    async with Client(Connection("http://127.0.0.1:1")) as client:
        live = Live(client, Keys(), SYSTEM)
        live.version = "v1.37.1"
        for one in live.informers.every:
            one.store["a/b"] = one
        monkeypatch.setattr(OptionalInformer, "store", {"a/b": live})
        found, _ = reading(live)
    missing = {one.name for one in fields(Dump) if not getattr(found, one.name)} - LEFT_OUT
    assert missing - {"reads_devices", "reads_groups"} == set()

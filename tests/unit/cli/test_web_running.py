"""What ``topogate web`` knows of a live cluster for questions: all that the controller does, by its own informers."""

import json

from support.snapshots import node

from cli.web.running import name_of, of_files, reading
from clock import SYSTEM
from crds.constants import Keys
from crds.settings import Settings
from kube.client import Client
from kube.connection.config import Connection
from ungater import kinds
from ungater.optional import OptionalInformer
from web.live import Live


async def test_every_kind_that_the_controller_reads_is_read_for_questions_too(monkeypatch):
    """LimitRanges and RuntimeClasses were not: a Job was said to fit whose pods, as they are made, do not."""
    async with Client(Connection("http://127.0.0.1:1")) as client:
        live = Live(client, Keys(), SYSTEM)
        live.version = "v1.37.1"
        for one in live.informers.every:
            one.store["a/b"] = one
        monkeypatch.setattr(OptionalInformer, "store", {"a/b": live})
        found, _ = reading(live)
    assert {kind for kind in kinds.KINDS if not found.of(kind)} == set()
    assert found.version == "v1.37.1"


def test_a_cluster_is_called_by_its_context_and_a_snapshot_by_its_file(tmp_path):
    config, snapshot = tmp_path / "config", tmp_path / "monday.json"
    context = {"name": "team@east", "context": {"cluster": "c", "user": "u"}}
    server = {"name": "c", "cluster": {"server": "https://127.0.0.1:6443"}}
    config.write_text(json.dumps({"contexts": [context], "clusters": [server], "current-context": "team@east"}))
    assert name_of(str(config), None) == "team@east"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("h1", "r1")]}))
    assert of_files([str(snapshot)], Settings()).source == "monday.json"

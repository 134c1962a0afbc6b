"""Before there is a cluster the demo shows the README's Job, as the controller would place it."""

import json

import yaml
from support.readme import JOB

from cli.cluster.dump import FoundObject
from cli.demo.command import FLEET
from cli.demo.preview import TRAIN, preview
from cli.demo.stage import make_flavor
from cli.output import stdout
from cli.web.snapshot import ClusterSnapshot
from crds.settings import Settings
from web.inside import workload

NOW = 1_800_000_000.0


def board(objects):
    return ClusterSnapshot(
        (FoundObject("a test", b"", 0, None, one, one["kind"]) for one in objects), Settings(), "a test"
    ).board


def test_it_is_the_job_of_the_readme():
    def asked(job):
        spec = job["spec"]
        [container] = spec["template"]["spec"]["containers"]
        counts = [spec[name] for name in ("parallelism", "completions", "completionMode")]
        return job["metadata"], counts, container["resources"]["limits"]

    assert asked(TRAIN) == asked(yaml.safe_load(JOB))


def test_it_is_placed_in_one_rack_in_the_order_of_its_ranks_and_the_page_shows_it():
    answer, objects = preview([*FLEET.objects(), make_flavor("tas", FLEET.group)], TRAIN, NOW)
    console = stdout()
    with console.capture() as told:
        console.print(answer)
    assert "Placed  4 pods in b1/r1" in told.get()
    made = board(objects)
    [key] = made.holders
    shown = workload(made, key)
    assert [(host, rank) for _, host, rank, *_ in shown["pods"]] == [(f"b1-r1-h{rank + 1}", rank) for rank in range(4)]
    assert made.holders[key].admitted == NOW
    assert json.dumps(objects)  # what the page's file holds is JSON

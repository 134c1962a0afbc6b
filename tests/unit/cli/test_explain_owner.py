"""Which owner ``topogate explain`` is asked about."""

import pytest
from support.owned import make_job
from support.world import World

from cli.explain.owners import find, named
from cli.output import Failure


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("train", ("", "train")),
        ("job/train", ("job", "train")),
        ("jobs.batch/train", ("job", "train")),
        ("JobSet/train", ("jobset", "train")),
        ("sts/db", ("statefulset", "db")),
        ("statefulsets.apps/db", ("statefulset", "db")),
        ("lws/serve-0", ("leaderworkerset", "serve-0")),
    ],
)
def test_names(text, what):
    assert named(text) == what


def test_what_is_there_and_what_is_not():
    world = World()
    world.put("job", make_job("train"))
    assert find(world.memory, "ns", "", "train").owner.name == "train"
    with pytest.raises(Failure, match="no statefulset train in namespace ns"):
        find(world.memory, "ns", "statefulset", "train")

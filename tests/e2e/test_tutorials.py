"""The two tutorials, typed as written: the administrator's, and the ML engineer's on the cluster that it made."""

import pytest
from support.typed_pages import scripts, shell

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
LAST = "6. And on"


def test_both_tutorials_do_what_they_say(tmp_path):
    """In one terminal, as background processes are ended in it at the end."""
    admin, engineer = scripts("tutorial-admin.md"), scripts("tutorial-ml.md")
    end = admin.pop(LAST)
    steps = [*admin.values(), *engineer.values(), end]
    assert len(steps) == 5 + 5 + 1
    with shell(tmp_path) as run:
        printed = run("".join(steps))
    for told in (
        "Topology of 16 nodes with nvidia.com/gpu",
        "resourceflavor/local created",
        "Nothing is wrong: installation, certificates, rights",
        "STARTS 8/64/512",
        "ClusterQueue team-b  cohort research",
        "node b1-r1-h1 (1 of 16) lacks the label cloud-provider.com/topology-rack",
        "4 pods in b1/r1",
        'Unsupported value: "row"',
        '("rack")',
        "8 pods do not fit one rack",
        "6 pods over 2 domains",
        "cluster default is gone",
    ):
        assert told in printed, f"{told}\n---\n{printed}"
    assert "\nerror: " not in printed

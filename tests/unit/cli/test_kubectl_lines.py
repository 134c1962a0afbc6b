"""Commands that people copy name our kinds with their group: Kueue has kinds of the same names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Kueue's names for the same, and short ones of either.
SHARED = (
    "workload|localqueue|clusterqueue|resourceflavor|cohort|workloadpriorityclass|admissioncheck|wl|lq|queue|cq|rf|co"
)
VERBS = "get|describe|edit|delete|annotate|label|patch|wait|explain|scale"
BARE = re.compile(
    rf"kubectl(?: -{{1,2}}\w+[ =][\w-]+)* (?:{VERBS})(?: -\w+(?: [\w-]+)?)* ((?:\w+,)*(?:{SHARED})(?:s|es)?)(?![\w.-])"
)
TEXTS = [
    *ROOT.glob("docs/**/*.md"),
    ROOT / "README.md",
    *ROOT.glob("manifests/**/*.yaml"),
    *ROOT.glob("manifests/**/*.txt"),
    *(
        path
        for folder in ("cli", "crds", "engine", "queueing", "ungater", "webhook")
        for path in ROOT.glob(f"{folder}/**/*.py")
    ),
]


def test_the_kinds_of_a_command_that_kueue_has_too_are_named_with_their_group():
    bare = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in TEXTS
        # A page is wrapped, and so is a command in it.
        for found in BARE.finditer(re.sub(r"\s*\n[ #>]*", " ", path.read_text(encoding="utf-8")))
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("kubectl get workloads", "workloads"),
        ("kubectl -n team-a get workloads`", "workloads"),
        ("kubectl get -n team-a wl", "wl"),
        ("kubectl get workload -o yaml", "workload"),
        ("kubectl get lq,wl", "lq,wl"),
        ("kubectl patch resourceflavor tas", "resourceflavor"),
        ("kubectl get workloads.topogate.dev", None),
        ("kubectl get workloads.kueue.x-k8s.io -o yaml", None),
        ("kubectl get localqueues.topogate.dev,workloads.topogate.dev", None),
        ("kubectl get pods", None),
    ],
)
def test_a_command_without_the_group_is_seen(command, found):
    seen = BARE.search(command)
    assert (seen[1] if seen else None) == found

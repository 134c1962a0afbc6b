"""Sentences that people get: each wording stands in a file, and each that the code has is made by a case."""

import ast
import re
from pathlib import Path

import pytest
from support.imports import parsed
from support.sentences import ALL

ROOT = Path(__file__).parents[2]
# Whole packages, so that a module that comes later is looked at too.
MADE_IN = [
    path
    for package in ("engine", "queueing", "crds", "kube", "ungater", "webhook")
    for path in sorted((ROOT / package).rglob("*.py"))
]
NOT_HERE = {
    "ungater/metrics.py": "help texts of metrics, which docs/metrics.md has",
    "ungater/queue_metrics.py": "as above",
    "ungater/cohort_metrics.py": "as above",
    "webhook/metrics.py": "as above",
    "webhook/answers.py": "what HTTP clients and probes are told, which are programs",
    "webhook/server.py": "as above",
    "engine/claims": "errors of Kubernetes' allocator and of CEL, in their words: tests/unit/engine/claims has them",
    "engine/kubelet/allocators.py": "words of the kubelet",
    "engine/kubelet/memory_manager.py": "as above",
    "engine/kubelet/devices/links.py": "what is wrong with the links of a node: tests/unit/kube/test_links.py has it",
    "kube/links.py": "as above",
    "ungater/numa/sources": "what is wrong with the data of a node: tests/unit/ungater/numa/sources has it",
    "ungater/model/unscheduled.py": "words of kube-scheduler, which are looked for",
    "crds/generate.py": "what it generates",
    "crds/reference.py": "words of docs/api.md, which it generates",
    "crds/kinds": "rules of the API server, with what it says of them: docs/api.md lists them",
    "kube/connection/transport.py": "errors of calls: tests/unit/cli/test_reaching.py has those that people get",
    "kube/connection/answers.py": "errors of calls, which end in the log",
    "kube/errors.py": "as above",
    "kube/patches.py": "as above",
    "kube/watch.py": "as above",
    "ungater/writers/workloads.py": "as above",
    "ungater/scheduling/writes.py": "as above",
    "engine/cluster/undo_log.py": "a fault of Topogate's own code",
    "engine/preemption/model.py": "as above: crds/settings.py refuses such settings before",
    "kube/informer.py": "as above",
    "kube/lease.py": "as above",
    "kube/resources.py": "as above",
}
# Sentences that take long histories to come about, or a whole cluster of devices and volumes: a part of each, and the
# test that has it.
ELSEWHERE = {
    "of its own:": "engine/cluster/test_host_names.py",
    "without levels, whose slices have several labels": "crds/test_assignment.py",
    "that were kept for it on node": "queueing/preemption/test_preempt_devices.py",
    "are gone, or others have them now": "queueing/preemption/test_preempt_devices.py",
    "devices of claims are short (": "ungater/cache/test_claims_of_templates.py",
    "in other ComputeDomains": "engine/placement/test_compute_domains.py",
    "no node gives a pod what it asks for:": "ungater/numa/test_xpu_sizes.py",
    "has the devices of a pod's claims (": "engine/placement/test_compute_domains.py",
    ", or correct its claims": "engine/placement/test_compute_domains.py",
    "; correct the expression in the claim or its DeviceClass": "engine/placement/test_compute_domains.py",
    "which no node publishes and DeviceClass": "ungater/cache/test_device_claims.py",
    "stands for": "ungater/cache/test_extended_devices.py",
    "no devices of DeviceClass": "ungater/cache/test_device_claims.py",
    '" are counted': "ungater/cache/test_device_claims.py",
    "is ReadWriteOncePod": "ungater/cache/test_pod_volumes.py",
    "ephemeral volume controller": "ungater/cache/test_pod_volumes.py",
    "was not made for": "ungater/cache/test_pod_volumes.py",
    "no devices yet": "ungater/cache/test_named_claims.py",
    "is to get them": "ungater/cache/test_named_claims.py",
    "is just being given to pod": "ungater/cache/test_named_claims.py",
    "a request for": "ungater/cache/test_extended_devices.py",
    "written again": "ungater/cache/test_cache_queues.py",
    "that no queue admitted": "ungater/cache/test_class_rules.py",
    "; others have its quota until": "ungater/kueue/test_kueue_retries.py",
    "its ResourceSlices are gone": "ungater/numa/test_device_turns.py",
    "it has no devices of": "ungater/numa/test_device_turns.py",
    "at the moment (": "ungater/numa/test_device_turns.py",
    "got NUMA zones": "ungater/numa/test_mismatches.py",
    "instead of the predicted": "ungater/numa/test_mismatches.py",
    "from now on what it has counts": "ungater/numa/test_mismatches.py",
    "got devices that were not promised:": "ungater/numa/test_mismatches.py",
    "the node publishes no NUMA zones of": "ungater/numa/test_unreported.py",
    "so this could not be predicted": "ungater/numa/test_unreported.py",
    "differ from its template in what decides": "ungater/reconcile/test_as_made.py",
    "is of kind": "ungater/jobs/test_kinds.py",
    "was placed with": "ungater/jobs/test_kinds.py",
    "must count the pods of all kinds": "ungater/jobs/test_kinds.py",
    "has pods of others": "ungater/scheduling/test_moves.py",
    "not all of its pods run in their slots": "cli/test_defrag_unmovable.py",
    "nested too deeply": "webhook/test_review.py",
    "different resource names in requests": "kube/test_limits.py",
    "volumes with a claim": "kube/test_volume_claims.py",
}
NO_SENTENCES = {
    "\\bCEL (runtime|compile) error|must evaluate to bool",
    "(two budgets of one pod)",
    "deleted over and over",  # which event was told
    "more than one PodDisruptionBudget",  # the API server's words, as the next
    "Reset to Pending after eviction. Previously:",
    "was made again",
    "Resources cannot be allocated with Topology locality",  # the kubelet's words
    "has no pod set",  # a fault of Topogate's own code, as the next
    "holds no pod set",
    "; reserve or restore it first",
    "expected the zones of",
    "such a large number of terms",  # of pods that run, which keep others off without a word
}
HASH = re.compile(r"job-[a-z]+-[0-9a-f]{4,}")
TEXTS = "\n".join(golden.file.read_text(encoding="utf-8") for golden in ALL)
CASES = [(golden, name) for golden in ALL for name in golden.cases]


@pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.file.stem)
def test_each_sentence_says_what_the_file_has(golden):
    said = golden.said()
    assert said == golden.file.read_text(encoding="utf-8"), "look at each, then `python -m support.sentences` in tests/"


def fragments(text):
    """The texts of at least three words in a module that people may get.

    Not: docstrings, types, what is logged, and what an assertion says.
    """
    tree = parsed(text)
    passed_over = set()
    for node in ast.walk(tree):
        for other in _not_for_people(node):
            passed_over.update(id(one) for one in ast.walk(other))
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [one.value.strip() for one in texts if id(one) not in passed_over and len(one.value.split()) >= 3]


def _not_for_people(node):
    match node:
        case ast.Expr(value=ast.Constant() as docstring):
            return [docstring]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="log"))) | ast.Call(func=ast.Name(id="AssertionError")):
            return [*node.args, *node.keywords]
        case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.expr() as annotation):
            return [annotation]
        case ast.FunctionDef(returns=ast.expr() as returns) | ast.AsyncFunctionDef(returns=ast.expr() as returns):
            return [returns]
    return []


def test_what_is_logged_and_types_are_no_sentences():
    made = '"""About a module here."""\ndef f(a: "x | y | z") -> "a b c":\n    log.info("one two three", x=1)\n'
    assert fragments(f'{made}    return f"four five six {{a}}"') == ["four five six"]


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_is_not_looked_at_is_there(name):
    assert (ROOT / name).exists()


def of_people(path):
    name = path.relative_to(ROOT).as_posix()
    return not any(name == other or name.startswith(f"{other}/") for other in NOT_HERE)


OF_PEOPLE = list(filter(of_people, MADE_IN))


@pytest.mark.parametrize("path", OF_PEOPLE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_sentence_that_the_code_has_is_made_by_a_case(path):
    found = fragments(path.read_text(encoding="utf-8"))
    other = [one for one in found if one not in TEXTS and one not in NO_SENTENCES]
    assert [one for one in other if not any(part in one for part in ELSEWHERE)] == []


@pytest.mark.parametrize(("part", "test"), ELSEWHERE.items())
def test_others_are_held_by_the_tests_that_are_named(part, test):
    assert part in (Path(__file__).parent / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(("golden", "name"), CASES, ids=[f"{golden.file.stem}-{name}" for golden, name in CASES])
def test_a_sentence_is_short_and_names_what_people_know(golden, name):
    text = golden.text(name)
    assert len(text) <= 360
    assert not HASH.search(text), "a Workload's name, where the owner's is known"
    assert not re.search(r"\b1 (pods|nodes|workloads)\b", text)
    assert not re.search(r"\banew\b|\bmade otherwise\b|\bis told\b", text), "HOUSE.md, Language"
    assert "(no queue)" not in text

"""A benchmark's goals: stated beside their figures, and printed met or missed at the end of a run."""

import json

import pytest

import benchmarks.__main__ as program
from benchmarks import claims, placement, preempt, whole_path
from benchmarks.harness import goals, report
from crds.constants import Keys


@pytest.fixture
def stated(monkeypatch, tmp_path):
    made = goals.Goals()
    for module in (report, claims, placement, preempt, whole_path):
        monkeypatch.setattr(module, "GOALS", made)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return made


def verdicts(made):
    return {what: verdict for _, what, _, _, verdict in made.rows()}


def test_a_figure_at_its_bound_meets_the_goal(stated):
    stated.at_most("memory", 180.0, 180.0, "MB")
    stated.at_most("memory of more", 180.1, 180.0, "MB")
    stated.at_least("rate", 0.8, 0.8, "")
    stated.at_least("rate of less", 0.799, 0.8, "")
    stated.at_least("nothing was measured", None, 0.8, "")
    stated.keep("x")
    assert [verdict for *_, verdict in stated.rows()] == ["met", "MISSED", "met", "MISSED", "MISSED"]
    assert stated.verdict() == "2 of 5 goals met"


def test_goals_are_those_of_the_benchmark_that_stated_them(stated, tmp_path):
    stated.at_most("seconds", 3.0, 2.0, "s")
    report.save("first", {})
    stated.at_most("seconds", 1.0, 2.0, "s")
    report.save("second", {})
    assert [(name, bound, verdict) for name, _, _, bound, verdict in stated.rows()] == [
        ("first", "<= 2 s", "MISSED"),
        ("second", "<= 2 s", "met"),
    ]
    (goal,) = json.loads((tmp_path / "second.json").read_text())["goals"]
    assert goal == {"what": "seconds", "figure": 1.0, "bound": 2.0, "unit": "s", "least": False, "met": True}


def test_the_end_of_a_run_prints_them_even_where_a_benchmark_failed(stated, monkeypatch, capsys):
    class Benchmark:
        def main(self, _words):
            stated.at_most("seconds", 3.0, 2.0, "s")
            report.save("numa", {})
            raise TimeoutError

    monkeypatch.setattr(program.importlib, "import_module", lambda _name: Benchmark())
    with pytest.raises(TimeoutError):
        program.main(["numa"])
    shown = capsys.readouterr().out
    assert "MISSED" in shown
    assert "0 of 1 goals met" in shown


def run(variant, seconds, **more):
    given = {"shape": "400 x 5 required", "jobs": 400, "pods": 2000, "created": 1.0, "first": 1.0, "half": 2.0}
    given |= {"cpu": {"webhook": 1.0, "ungater": 2.0, "etcd": 36.0}, "memory": {}, "calls": 0.5, "requests": {}}
    given |= {"peak": {"webhook": 60_000_000, "ungater": 110_000_000}, "jobs_in_one_rack": 400, "racks": 16}
    return whole_path.Run(variant=variant, seconds=seconds, **{**given, **more})


def test_the_whole_path_has_other_goals_through_queues_and_for_one_large_job(stated):
    for variant in ("topogate", "queue"):
        whole_path._print([run("plain", 8.0, calls=None), run(variant, 9.8)], 640)
        stated.keep(variant)
    large = {"shape": "1 x 2000 preferred", "jobs": 1}
    whole_path._print([run("plain", 8.0, calls=None, **large), run("topogate", 8.8, **large)], 5000)
    stated.keep("large")
    of = {
        name: {
            what.partition(": ")[2]: (goal, verdict)
            for benchmark, what, _, goal, verdict in stated.rows()
            if benchmark == name
        }
        for name in ("topogate", "queue", "large")
    }
    assert of["topogate"] == {
        "share of plain's rate": (">= 0.8", "met"),
        "calls a pod beyond the patch": ("<= 0.4", "MISSED"),
        "own CPU a pod": ("<= 2 ms", "met"),
        "CPU of all processes a pod": ("<= 22 ms", "met"),
        "memory of webhook and ungater": ("<= 180 MB", "met"),
    }
    assert of["queue"]["share of plain's rate"] == (">= 0.85", "MISSED")
    assert of["queue"]["own CPU a pod"] == ("<= 2.5 ms", "met")
    assert of["large"]["share of plain's rate"] == (">= 0.9", "met")
    assert of["large"]["own CPU a pod"] == ("<= 1 ms", "MISSED")
    assert "memory of webhook and ungater" not in of["large"]


def test_the_jobs_of_the_whole_path_are_indexed():
    (body,) = whole_path._bodies(whole_path.Shape(1, 5, "required"), "topogate", 1)
    job = json.loads(body)
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["metadata"]["labels"] == {Keys().queue_name: "queue-0"}


def test_a_small_placement_states_its_goals_by_what_is_slowest(stated):
    rows = [
        {"nodes": 5000, "pods": 16, "new_cpu_ms": 0.09, "seen_cpu_ms": 0.06},
        {"nodes": 5000, "pods": 256, "new_cpu_ms": 0.09, "seen_cpu_ms": 0.06},
        {"nodes": 5000, "pods": 4096, "new_cpu_ms": 0.3, "seen_cpu_ms": 0.06},
    ]
    placement._state(5000, rows)
    placement._state(640, rows)  # without goals
    stated.keep("placement")
    assert list(verdicts(stated).values()) == ["met", "MISSED", "MISSED", "met"]


def test_victims_have_goals_by_how_many_there_are(stated):
    racks = [{"nodes": 640, "victims": 16, "cpu_ms": 1.9}, {"nodes": 640, "victims": 128, "cpu_ms": 7.0}]
    pods = [
        {"preemptor": f"{name}, 2 GPUs", "method": str(strategy), "p50_us": 90.0}
        for name, strategy in preempt.POD_GOALS
    ]
    preempt._state(pods, racks, [{"nodes": 640, "cpu_ms": 4.5}])
    stated.keep("preempt")
    assert list(verdicts(stated).values()) == ["met", "met", "met", "MISSED", "MISSED"]


def test_one_queue_is_compared_with_kueue_where_that_was_measured(stated):
    kueue = {"cpu": {"kueue": 24.0, "etcd": 36.0}, "calls": None}
    whole_path._print([run("plain", 8.0, calls=None), run("queue", 10.0), run("kueue", 16.0, **kueue)], 640)
    stated.keep("both")
    of = {what: (goal, verdict) for _, what, _, goal, verdict in stated.rows()}
    assert of["400 x 5 required, queue: times Kueue's rate"] == (">= 1.5", "met")
    assert not any("kueue:" in what for what in of)


def test_claims_are_compared_with_plain_amounts_and_one_change_is_not(stated):
    found = [("new", 0.2, 0.125), ("selector", 40.0, 0.2), ("one change", 0.9, 0.1)]
    claims._state(found, {"longest_ms": 600.0, "refused": None})
    claims._state([], {"longest_ms": 1.0, "refused": "too many steps"})
    stated.keep("claims")
    assert [verdict for _, _, _, _, verdict in stated.rows()] == ["met", "MISSED", "met", "MISSED", "MISSED"]

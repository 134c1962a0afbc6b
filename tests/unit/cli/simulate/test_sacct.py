"""What ``sacct -P`` prints, read as the jobs of a simulation: columns and values of Slurm 22.05 and 24.11, sacct(1)."""

import gzip
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.output import Failure
from cli.simulate.job_files import JobFormat, read_job_files
from cli.simulate.sacct import COMMAND, read
from engine.model import HOSTNAME_LABEL, Policy

FILE = Path("tests/data/slurm/sacct.txt")
RACK = "cloud-provider.com/topology-rack"
LEVELS = ("cloud-provider.com/topology-block", RACK, HOSTNAME_LABEL)
GPU = "nvidia.com/gpu"
GIB = 2**30
HEAD = "JobID|Submit|Elapsed|AllocTRES\n"
GOOD = "1|2026-03-01T08:00:00|00:01:00|cpu=4,node=1\n"


@pytest.fixture(scope="module")
def trace():
    return read(FILE.read_text(), "t.txt", LEVELS)


def jobs_of(text):
    return read(text, "t.txt", LEVELS).jobs


def amounts(job):
    return [(pods.name, pods.count, pods.requests) for pods in job.pod_sets]


def test_every_time_that_a_job_had_nodes_is_a_job(trace):
    assert [(job.name, job.arrival, job.duration, job.queue) for job in trace.jobs] == [
        ("1200", 0, 7200, "physics"),
        ("1201_1", 600, 600, "chemistry"),
        ("1201_2", 1200, 1, "chemistry"),  # it failed at once, in less than a second; its throttle let go at 08:20
        ("1202", 3600, 1800, "physics"),  # both components, which start together
        ("1205", 4200, 300, "physics"),
        ("1205-run-2", 4621, 93784, "physics"),  # queued again after its node failed, with the same number
        ("1206", 7200, 900, "default"),  # the later line of two of the same run
        ("1207", 10800, 60, "chemistry"),
    ]


def test_what_is_left_out_or_not_simulated_is_counted_and_said(trace):
    told = "times have no zone, so an hour is lost or gained where the clocks change; SLURM_TIME_FORMAT=%FT%T%z makes"
    assert trace.notes == [
        "8 jobs; lines left out: 3 never started (2 CANCELLED, 1 PENDING), 4 steps, 1 in the file before",
        "1 still ran when sacct looked: each is simulated for as long as it had run",
        "TRES that are not simulated: license/solver",
        f"{told} sacct print it",
    ]


def test_a_pod_a_node_and_gpus_without_a_type_with_one_or_with_both(trace):
    jobs = {job.name: job for job in trace.jobs}
    whole = {"cpu": 16000, "memory": 200 * GIB, GPU: 8}
    assert amounts(jobs["1200"]) == [("main", 2, whole)]
    assert amounts(jobs["1206"]) == [("main", 1, {"cpu": 1000, "memory": 2 * GIB})]
    assert amounts(jobs["1207"]) == [("main", 1, {"cpu": 8000, GPU: 8})]
    assert amounts(jobs["1201_1"]) == [("main", 1, {"cpu": 4000, GPU: 1})], "62.5 GiB that nobody asked for"


def test_components_are_pod_sets_of_one_job(trace):
    (job,) = (job for job in trace.jobs if job.name == "1202")
    assert amounts(job) == [
        ("component-0", 1, {"cpu": 8000, "memory": 32 * GIB}),
        ("component-1", 2, {"cpu": 6000, GPU: 6}),
    ]


def test_gpus_that_are_uneven_between_nodes_stay_as_many_and_in_one_domain(trace):
    (job,) = (job for job in trace.jobs if job.name == "1205")
    assert amounts(job) == [("main", 2, {"cpu": 4800, GPU: 3}), ("main-rest", 3, {"cpu": 4800, GPU: 2})]
    assert [pods.group for pods in job.pod_sets] == ["main", "main"]


def test_jobs_of_several_nodes_prefer_what_is_above_the_nodes(trace):
    wishes = {job.name: job.pod_sets[0].topology for job in trace.jobs}
    assert (wishes["1200"].policy, wishes["1200"].level) == (Policy.PREFERRED, RACK)
    assert wishes["1207"].policy is Policy.UNCONSTRAINED
    alone = read(FILE.read_text(), "t.txt", [HOSTNAME_LABEL]).jobs
    assert {job.pod_sets[0].topology.policy for job in alone} == {Policy.UNCONSTRAINED}


def test_without_what_was_asked_for_all_memory_counts():
    (job,) = jobs_of("JobID|Submit|ElapsedRaw|AllocTRES\n1|2026-03-01T08:00:00|5|cpu=1,mem=62.50G,node=2\n")
    assert amounts(job) == [("main", 2, {"cpu": 500, "memory": 62.5 * GIB / 2})]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04", 184), ("00:00:00", 1), ("00:01:00.500", 60)],
)
def test_elapsed_time_has_days_and_hours_where_it_needs_them(text, seconds):
    (job,) = jobs_of(f"{HEAD}1|2026-03-01T08:00:00|{text}|cpu=1,node=1\n")
    assert job.duration == seconds


def test_a_zone_counts_so_that_no_hour_is_lost_where_the_clocks_change():
    rows = [
        f"{at}|2026-03-29T{time}|00:01:00|cpu=1,node=1\n" for at, time in ((1, "01:30:00+0100"), (2, "03:30:00+0200"))
    ]
    trace = read(HEAD + "".join(rows), "t.txt", LEVELS)
    assert [job.arrival for job in trace.jobs] == [0, 3600]
    assert len(trace.notes) == 1


def test_lines_may_end_as_sacct_p_and_windows_end_them():
    rows = (HEAD + GOOD + "2|2026-03-01T08:00:00|00:00:00|\n").replace("\n", "|\r\n")
    assert [job.name for job in jobs_of(rows)] == ["1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("JobID|JobName|State\n", ["line 1", "lacks AllocTRES, Submit or Eligible, ElapsedRaw or Elapsed", COMMAND]),
        ("JobID JobName State\n----- ------- -----\n", ["line 1", "between |", "sacct -P"]),
        ("JobID|jobid|Submit\n", ["line 1", "'jobid'", "twice"]),
        (HEAD, ["no job in it ever ran", "lines left out: none"]),
        (HEAD + "1|2026-03-01T08:00:00|00:00:00|\n", ["no job in it ever ran", "1 never started"]),
        (HEAD + GOOD + "x|||\n", ["line 3", "'JobID'", "'x'", "4711_3"]),
        (HEAD + "1|01 Mar|00:01:00|cpu=4,node=1\n", ["line 2", "'Submit'", "'01 Mar'", "2026-03-01T08:00:00+0100"]),
        (HEAD + "1|Unknown|00:01:00|cpu=4,node=1\n", ["line 2", "'Submit'", "'Unknown'"]),
        (HEAD + "1|2026-03-01T08:00:00|INVALID|cpu=4,node=1\n", ["line 2", "'Elapsed'", "'INVALID'", "1-02:03:04"]),
        (HEAD.replace("ed|", "edRaw|") + GOOD, ["line 2", "'ElapsedRaw'", "93784"]),
        (HEAD + "1|2026-03-01T08:00:00|00:01:00|cpu=four,node=1\n", ["line 2", "'AllocTRES'", "cpu=four", "whole"]),
        (HEAD + "1|2026-03-01T08:00:00|00:01:00|cpu=4\n", ["line 2", "'AllocTRES'", "no nodes", "node=2"]),
        (HEAD + "1|2026-03-01T08:00:00|00:01:00|mem=4G,node=1\n", ["line 2", "'AllocTRES'", "neither CPUs nor GPUs"]),
        (HEAD + "1|2026-03-01T08:00:00|00:01:00|cpu=4,mem=4Gn,node=1\n", ["line 2", "mem=4Gn", "mem=62.50G"]),
        (HEAD + "1|2026-03-01T08:00:00|00:01:00|64 cpus\n", ["line 2", "'64 cpus'", "cpu=64,gres/gpu=8"]),
        (HEAD + "1|a|" + GOOD, ["line 2", "6 cells", "has 4", "SubmitLine"]),
        (HEAD + GOOD + "2|2026-03-01T08:00:00Z|00:01:00|cpu=4,node=1\n", ["line 3", "zone", "mixed"]),
    ],
)
def test_what_is_wrong_is_told_by_line_and_column_with_an_example(text, says):
    with pytest.raises(Failure) as failure:
        read(text, "t.txt", LEVELS)
    assert str(failure.value).startswith("t.txt")
    assert [part for part in says if part not in str(failure.value)] == []


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("t.txt", FILE.read_bytes(), JobFormat.SACCT),
        ("t.csv", FILE.read_bytes(), JobFormat.SACCT),
        ("t.gz", gzip.compress(FILE.read_bytes()), JobFormat.SACCT),
        ("t", b"JobID    State\n", JobFormat.SACCT),
        ("t.csv", b"jobid,arrival,duration,pods,cpu\n", JobFormat.CSV),
        ("t.csv", b"jobid arrival\n", JobFormat.CSV),
        ("t.txt", b"arrival,duration,pods,gpus\n0,60,1,8\n", JobFormat.CSV),
        ("stdin", b'\xef\xbb\xbf"Arrival", "Pods",x\r\n', JobFormat.CSV),
        ("t.txt", b"jobid,arrival\n", JobFormat.MANIFESTS),
        ("t.yaml", b"kind: Job\nmetadata: {name: jobid}\n", JobFormat.MANIFESTS),
    ],
)
def test_it_is_recognised_by_its_header_whatever_it_is_called(tmp_path, name, content, form):
    (tmp_path / name).write_bytes(content)
    (file,) = read_job_files([str(tmp_path / name)])
    assert file.format is form


def test_a_simulation_of_what_sacct_pipes_into_it():
    args = ["simulate", "run", "--racks", "2", "--hosts", "4", "-j", "-", "-p", "topology"]
    result = CliRunner().invoke(app, args, input=FILE.read_bytes())
    assert result.exit_code == 0, result.output
    told = " ".join(result.stdout.split())
    assert "jobs 8 finished 8" in told
    assert "stdin: 8 jobs; lines left out: 3 never started" in result.stderr

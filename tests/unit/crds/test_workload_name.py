import re

from crds.names import MAX_NAME, workload_name

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")


def test_same_job_same_name_and_new_uid_new_name():
    assert workload_name("job", "train", "u1") == workload_name("job", "train", "u1")
    assert workload_name("job", "train", "u1") != workload_name("job", "train", "u2")
    assert re.fullmatch(r"job-train-[0-9a-f]{10}", workload_name("Job", "train", "u1"))


def test_long_names_are_cut_and_stay_apart():
    long = [f"{'a' * 60}{end}" for end in ("xx", "yy")]
    names = {workload_name("job", name, f"uid-{name}") for name in long}
    assert len(names) == 2
    assert all(len(name) <= MAX_NAME and LABEL.match(name) for name in names)


def test_every_job_name_gives_a_dns_label():
    for name in ("a.b.c", "a" * 48 + ".b", "a" * 47 + "-" + "b" * 10, "x" * 253):
        assert LABEL.match(workload_name("job", name, "uid")), name

"""The workflows: what they run exists. The one that publishes a tag: what each job may do, and when; one version."""

import importlib.util
import re

import pytest
import yaml
from support.packages import ROOT

from image import release

WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yaml")}
RELEASE = WORKFLOWS["release.yaml"]
JOBS = RELEASE["jobs"]
VERSION = next(iter(release.versions().values()))
SIGNS = {"id-token": "write", "attestations": "write"}
PUBLISHES = {"image": {"packages"}, "chart": {"packages"}, "pypi": {"id-token"}, "release": {"contents"}}


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def typed(job):
    return "\n".join(step["run"] for step in job["steps"] if "run" in step)


def used(job):
    return [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]


def before(name):
    """The jobs that must have succeeded."""
    return {earlier for each in JOBS[name].get("needs", ()) for earlier in {each, *before(each)}}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_a_workflow_makes_is_a_target(name):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) \??=", makefile, re.MULTILINE))
    text = "\n".join(step.get("run", "") for step in steps(WORKFLOWS[name]))
    made = re.findall(r"\bmake ([a-z-]+)((?: [A-Z]+=\S+)*)", text)
    assert made
    for target, given in made:
        assert target in targets
        assert set(re.findall(r" ([A-Z]+)=", given)) <= variables


def test_the_workflows_make_all_that_a_change_must_pass_and_all_that_is_published():
    text = "\n".join(step.get("run", "") for workflow in WORKFLOWS.values() for step in steps(workflow))
    made = set(re.findall(r"\bmake ([a-z-]+)", text))
    assert made == {"lint", "unit", "test", "docs", "wheel", "image", "chart", "push-chart"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_modules_that_a_workflow_runs_exist(name):
    text = "\n".join(step.get("run", "") for step in steps(WORKFLOWS[name]))
    assert all(importlib.util.find_spec(module) for module in re.findall(r"python -m ([\w.]+)", text))


def test_every_action_has_a_version_and_all_workflows_the_same_one():
    found = {}
    for workflow in WORKFLOWS.values():
        for step in steps(workflow):
            if "uses" in step:
                action, _, version = step["uses"].partition("@")
                assert re.fullmatch(r"v\d+|release/v1", version), step["uses"]
                assert found.setdefault(action, version) == version, action


def test_only_a_tag_is_released():
    assert RELEASE[True] == {"push": {"tags": ["v*"]}}  # `on`, which YAML 1.1 reads as a truth


def test_each_job_may_write_what_it_publishes_and_nothing_else():
    assert RELEASE["permissions"] == {"contents": "read"}
    for name, job in JOBS.items():
        assert "timeout-minutes" in job
        may = {right for right, what in job.get("permissions", {}).items() if what == "write"}
        signs = set(SIGNS) if "actions/attest-build-provenance" in used(job) else set()
        assert may == PUBLISHES.get(name, set()) | signs, name


@pytest.mark.parametrize("name", PUBLISHES)
def test_nothing_is_published_before_the_tag_is_checked_and_the_wheel_has_shown_its_demo(name):
    assert {"version", "wheel"} <= before(name)
    assert "python -m image.release" in typed(JOBS["version"])
    assert "topogate demo" in typed(JOBS["wheel"])


@pytest.mark.parametrize("name", ["wheel", "image", "chart"])
def test_what_is_published_has_its_provenance(name):
    assert "actions/attest-build-provenance" in used(JOBS[name])


def test_no_job_holds_a_password_of_a_package_index():
    assert JOBS["pypi"]["environment"] == "pypi"
    (index,) = [step for step in JOBS["pypi"]["steps"] if step["uses"].startswith("pypa/")]
    assert "with" not in index
    secrets = re.findall(r"secrets\.(\w+)", (ROOT / ".github" / "workflows" / "release.yaml").read_text())
    assert set(secrets) == {"GITHUB_TOKEN"}


def test_the_tag_of_this_version_has_what_the_changelog_says_of_it():
    notes = release.notes(f"v{VERSION}")
    assert notes.startswith("### ")
    assert notes in (ROOT / "CHANGELOG.md").read_text()
    assert "\n## " not in notes


@pytest.mark.parametrize("tag", [VERSION, "v9.9.9", f"v{VERSION}-rc1", "v"])
def test_another_tag_is_refused_with_what_is_of_another_version(tag):
    with pytest.raises(
        release.ReleaseError, match=rf"^tag {re.escape(tag)} is not .*pyproject\.toml.*Chart\.yaml.*CHANGELOG"
    ):
        release.notes(tag)


@pytest.mark.parametrize(
    ("file", "now", "place"),
    [
        (release.PROJECT, 'version = "1.0.0"', "pyproject.toml (project.version): 1.0.0"),
        (release.CHART, "version: 1.0.0", "Chart.yaml (version): 1.0.0"),
        (release.CHART, 'appVersion: "1.0.0"', "Chart.yaml (appVersion): 1.0.0"),
        (release.CHANGELOG, "## 1.0.0 - 2027-01-01", "(the first heading): 1.0.0"),
    ],
)
def test_a_part_of_another_version_is_named(tmp_path, file, now, place):
    for each in (release.PROJECT, release.CHART, release.CHANGELOG):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text((ROOT / each).read_text())
    word = re.match(r"\S+", now)[0]
    text = (tmp_path / file).read_text()
    (tmp_path / file).write_text(
        re.sub(rf"^{word} .*$" if word == "##" else rf"^{word}.*$", now, text, count=1, flags=re.MULTILINE)
    )
    with pytest.raises(release.ReleaseError, match=re.escape(place)) as refused:
        release.notes(f"v{VERSION}", tmp_path)
    assert VERSION not in str(refused.value).partition(". Tag")[0].removeprefix(f"tag v{VERSION}")

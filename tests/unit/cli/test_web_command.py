"""``topogate web``: options that would open the door too far are refused, and what it writes is whole."""

import json
import subprocess
import sys

import pytest
from support.web_cluster import items


def run(*options):
    command = (sys.executable, "-m", "cli.main", *options)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "others reach it"),
        (("--host", "gpus.example.com"), "others reach it"),
        (("-f", "x.yaml", "--authentication", "kubernetes"), "for one person"),
        (("--tls-key", "key.pem"), "go together"),
        (("-f", "/nowhere/x.yaml"), "x.yaml"),
        (("-f", "x.yaml", "--prometheus", "http://p:9090"), "goes with neither"),
        (("--prometheus", "p:9090"), "expected http://HOST:PORT"),
        (("--prometheus", "http://p:9090/?x=1"), "expected http://HOST:PORT"),
        (("--prometheus-label", "cluster=east"), "give that too"),
        (("--prometheus", "http://p:9090", "--prometheus-label", "a-b=c"), "expected NAME=VALUE"),
    ],
)
def test_a_door_that_is_open_too_far_is_refused(options, said):
    done = run("web", *options)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("key", ["short", "a key with blanks in it", "schl\u00fcssel-der-passt"])
def test_a_key_of_ones_own_is_long_and_fits_a_link(key, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOGATE_WEB_KEY", key)
    made = tmp_path / "cluster.json"
    made.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items(1, 1, 1)}))
    done = run("web", "-f", str(made), "--port", "0")
    assert (done.returncode, done.stderr) == (
        1,
        "Error: TOPOGATE_WEB_KEY: expected at least 16 ASCII characters without blanks\n",
    )


def test_a_snapshot_becomes_one_file(tmp_path):
    made, page = tmp_path / "cluster.json", tmp_path / "page.html"
    made.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items(2, 2, 3)}))
    done = run("web", "-f", str(made), "--out", str(page), "--cluster-name", "east")
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert len(data["picture"]["hosts"]) == len(data["hosts"]) == 12
    assert data["picture"]["cluster"] == "east"
    assert data["queues"]["queues"]
    assert "script-src 'sha256-" in text


def test_files_without_a_node_show_nothing(tmp_path):
    empty = tmp_path / "empty.yaml"
    empty.write_text("apiVersion: v1\nkind: List\nitems: []\n")
    done = run("web", "-f", str(empty), "--out", str(tmp_path / "page.html"))
    assert (done.returncode, "there is no Node" in done.stderr) == (1, True)


def test_a_simulation_becomes_one_file_a_policy(tmp_path):
    page = tmp_path / "sim.html"
    done = run(
        *("simulate", "run", "--blocks", "1", "--racks", "2", "--hosts", "4", "--jobs", "60", "--span", "2d"),
        *("-p", "topology,count-only", "--web", str(page)),
    )
    assert done.returncode == 0, done.stderr
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["sim-count-only.html", "sim-topology.html"]
    data = json.loads((tmp_path / written[1]).read_text().partition('id="data">')[2].partition("</script>")[0])
    assert len(data["picture"]["hosts"]) == 8
    assert [one["name"] for one in data["queues"]["queues"]]
    film = data["film"]
    assert 20 < len(film["times"]) == len(film["moments"])
    assert film["times"] == sorted(film["times"])
    assert 0 < film["first"] < len(film["times"]) - 1, "half-way"
    assert data["history"]["relative"]
    assert max(data["history"]["used"]) > 0

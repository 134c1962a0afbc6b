"""Every file of manifests/samples, given to kubectl as its reader would: all of it is taken, all of its pods run."""

import pytest
import yaml
from support.house import NAMESPACE, house
from support.jobs import Watched
from support.packages import ROOT

from localcluster import Fleet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SAMPLES = ROOT / "manifests" / "samples"
FIRST = ("flavor", "cohorts", "queues")  # what the others refer to
FLEET = Fleet(blocks=2, racks=2, hosts=8, gpus=8)  # 256 GPUs


async def test_every_sample_works():
    async with house(FLEET) as here:
        for name in FIRST:
            file = str(SAMPLES / f"{name}.yaml")
            done = await here.run("apply", "--server-side", "--force-conflicts", "-f", file, program="kubectl")
            assert done.returncode == 0, done.stderr
        made = {}
        for path in sorted(SAMPLES.glob("*.yaml")):
            if path.stem not in FIRST:
                done = await here.run("create", "-f", str(path), "-o", "name", program="kubectl")
                assert done.returncode == 0, (path.name, done.stderr)
                made[path] = done.stdout.strip().rpartition("/")[2]
        jobs = Watched(here.client, NAMESPACE)
        for path, job in made.items():
            pods = await jobs.running(job, yaml.safe_load(path.read_text())["spec"]["parallelism"])
            if path.stem in {"required", "queued"}:
                assert len(await here.racks(pods)) == 1, path.name
            workload = await jobs.workload(job)
            assert "Admitted" in {c["type"] for c in workload["status"]["conditions"] if c["status"] == "True"}

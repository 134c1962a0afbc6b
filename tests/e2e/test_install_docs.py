"""docs/install.md, typed as written: every block marked ``sh``, section by section, on a fresh local cluster."""

import pytest
from support.trusted import trusted
from support.typed_pages import scripts, shell

from localcluster.programs.binaries import Binaries

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PAGE = "install.md"
NODE = "{apiVersion: v1, kind: Node, metadata: {name: not-simulated}}"


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    with shell(tmp_path_factory.mktemp("home")) as run:
        yield run


def test_the_page_is_as_it_is_expected():
    assert list(scripts(PAGE)) == [
        "Install",
        "With Helm",
        "With kustomize",
        "With the command",
        "Settings",
        "Components beside the cluster",
    ]


def test_what_is_typed_works(typed):
    section = scripts(PAGE)
    typed(section["Install"])
    typed(f"kubectl create -f - <<EOF\n{NODE}\nEOF")  # else the command says that the nodes are simulated
    printed = typed(section["With Helm"])
    assert "STATUS: deployed" in printed
    assert "topogate-agent-" in printed
    printed = typed(section["With kustomize"])
    assert "deployment.apps/topogate-webhook serverside-applied" in printed
    *_, kubeconfig = typed("echo $KUBECONFIG").split()
    with trusted(Binaries.find().paths["kubectl"], kubeconfig):
        printed = typed(section["With the command"])
    assert "daemonset/topogate-agent in topogate-system-agent created" in printed
    printed = typed(section["Components beside the cluster"])
    assert "condition met" in printed

"""Where no real kubelet can be had at once, the demo says why and goes on with those that are simulated."""

import pytest

from cli.demo import real
from localcluster.programs import binaries, build, download


@pytest.mark.parametrize(
    ("there", "refusal", "said"),
    [(False, "", "python -m localcluster --tools"), (True, "no namespaces", "no namespaces")],
)
async def test_the_demo_says_why_no_real_kubelet_is_shown(monkeypatch, capsys, there, refusal, said):
    monkeypatch.setattr(real, "at_hand", lambda _: there)
    monkeypatch.setattr(real.service, "refusal", lambda: refusal)
    await real.real(None)
    out = " ".join(capsys.readouterr().out.split())
    assert "The kubelets above are simulated, and no real one is shown" in out
    assert said in out


def test_programs_are_at_hand_where_none_is_to_be_made(monkeypatch, tmp_path):
    monkeypatch.delenv(binaries.CHOICE, raising=False)
    monkeypatch.setattr(binaries, "_existing", lambda name: tmp_path if name == "etcd" else None)
    monkeypatch.setattr(download, "cached", lambda names: {name: tmp_path for name in names if name == "kwok"})
    monkeypatch.setattr(build, "built", lambda names: {name: tmp_path for name in names if name == "kubelet"})
    assert binaries.at_hand(["etcd", "kwok", "kubelet"])
    assert not binaries.at_hand(["etcd", "kubectl"])
    monkeypatch.setenv(binaries.CHOICE, binaries.DOWNLOAD)  # then nothing that was built counts
    assert not binaries.at_hand(["kubelet"])
    monkeypatch.setenv(binaries.CHOICE, str(tmp_path))
    assert not binaries.at_hand(["kubelet"])

"""Machines and kubelets as options describe them."""

from cli.output import Failure
from localcluster.kubelets.specs import parse_kubelet, parse_machine


def check_machine(machine: str, kubelet: str) -> None:
    """Failure where they make no sense, before a node is made: a wrong machine would leave nodes without an inside."""
    if kubelet and not machine:
        raise Failure(f"--kubelet {kubelet!r}: only machines have a kubelet; give --machine too")
    for option, parse, text in (("--machine", parse_machine, machine), ("--kubelet", parse_kubelet, kubelet)):
        try:
            if text:
                parse(text)
        except ValueError as error:
            raise Failure(f"{option}: {error}") from None

"""How the devices of simulated machines are published, as a person writes it: a form, ``tainted`` and ``channels``."""

import re
from dataclasses import dataclass
from functools import cache

from localcluster.kubelets.specs import parse_machine

GPUS = "gpus"
PARTITIONS = "partitions"
SHARED = "shared"
FORMS = (GPUS, PARTITIONS, SHARED)
TAINTED = "tainted"
CHANNELS = "channels"
_WORDS = (*FORMS, TAINTED, CHANNELS)


@dataclass(frozen=True)
class Driver:
    """``form`` is one of ``FORMS``; ``tainted``: the last GPU of every machine carries a taint.

    ``channels``: each machine has a channel for ComputeDomains, and a rack is an NVLink clique.
    """

    form: str = GPUS
    tainted: bool = False
    channels: bool = False


@cache
def parse_driver(text: str) -> Driver:
    """One of ``FORMS`` (default: gpus), ``tainted`` and ``channels``, between commas.

    Raises:
        ValueError: with the word that is not understood, or with two that contradict each other.
    """
    words = [word for word in re.split(r"[\s,/]+", text.strip()) if word]
    for word in words:
        if word not in _WORDS:
            raise ValueError(f"{word!r}: expected one of {', '.join(_WORDS)}")
    forms = sorted({word for word in words if word in FORMS})
    if len(forms) > 1:
        raise ValueError(f"{' and '.join(forms)} contradict each other: devices are published in one form")
    return Driver(forms[0] if forms else GPUS, TAINTED in words, CHANNELS in words)


def check_driver(text: str, machine: str) -> Driver:
    """The same, for a ``machine`` as `localcluster.kubelets.specs` reads it.

    Raises:
        ValueError: also where there is no machine, or one without such devices.
    """
    driver = parse_driver(text)
    if not machine:
        raise ValueError("only simulated machines have devices to publish; give a machine too")
    spec = parse_machine(machine)
    if not spec.gpus and (driver.form == PARTITIONS or driver.tainted):
        raise ValueError(f"machine {machine!r} has no GPUs to be {'tainted' if driver.tainted else 'partitioned'}")
    if not spec.gpus and not spec.nics:
        raise ValueError(f"machine {machine!r} has neither GPUs nor NICs")
    return driver

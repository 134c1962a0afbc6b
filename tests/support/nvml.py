"""NVML as it was recorded: a dict of calls, ``"nvmlDeviceGetUUID(0)"`` -> what it returned.

A handle is the GPU's index. A struct is a dict of its fields; ``{"error": 15}`` raises that NVMLError. What was not
recorded is not supported (error 3), and an index beyond the last one is an invalid argument (2).
"""

import json
from types import SimpleNamespace

import pynvml
from support.tree import DATA


class Recording:
    """Stands in for the module ``pynvml``. ``calls`` may be changed; ``made`` counts calls by function."""

    NVMLError = pynvml.NVMLError

    def __init__(self, calls):
        self.calls = dict(calls)
        self.made = {}

    def __getattr__(self, function):
        if not function.startswith("nvml"):
            raise AttributeError(function)

        def call(*arguments):
            self.made[function] = self.made.get(function, 0) + 1
            answer = self.calls.get(f"{function}({', '.join(map(str, arguments))})", {"error": 3})
            if isinstance(answer, dict) and "error" in answer:
                raise pynvml.NVMLError(answer["error"])
            return SimpleNamespace(**answer) if isinstance(answer, dict) else answer

        return call


def recorded(name):
    """One of the recordings in ``tests/data/nvml``."""
    return Recording(json.loads((DATA / "nvml" / f"{name}.json").read_text()))

"""NVML's bindings, which are imported only where their library is: most nodes have no NVIDIA driver, and do without."""

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

LIBRARY = "libnvidia-ml.so.1"


class NVMLError(Exception):
    """There is no NVML."""


class _Absent:
    """What ``pynvml`` does without its library."""

    NVMLError = NVMLError

    @staticmethod
    def nvmlInit() -> None:  # noqa: N802 -- NVML's name
        raise NVMLError("NVML Shared Library Not Found")


class Nvml:
    """The module ``pynvml`` once its library can be loaded; until then it only says that there is none."""

    def __init__(self) -> None:
        self._bindings: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        # Asked at each look: a driver may be installed while the agent runs, as NVIDIA's operator does it.
        if self._bindings is None and name == "nvmlInit" and _there():
            import pynvml  # late: it takes 2 MiB

            self._bindings = pynvml
        return getattr(self._bindings or _Absent, name)


def _there() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True

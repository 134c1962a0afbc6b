"""What the webhook gives back to the kernel; in a process of its own, as the setting is for all of it."""

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes
import sys

from webhook import heap

class Info(ctypes.Structure):  # mallinfo2(3)
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info

if sys.argv[1] == "settled":
    heap.settle()
large = bytearray(8 << 20)  # a large review came and went: without it the threshold is as high from then on
del large
before = libc.mallinfo2().hblks
buffers = [bytearray(256 << 10) for _ in range(64)]  # of TLS connections; the first may still find room in the heap
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
@pytest.mark.parametrize(("when", "most", "least"), [("before", 0, 0), ("settled", 64, 60)])
def test_large_blocks_are_the_kernels_own_also_after_larger_ones_were_freed(when, most, least):
    done = subprocess.run([sys.executable, "-c", SCRIPT, when], capture_output=True, text=True, check=True, timeout=60)
    assert least <= int(done.stdout) <= most

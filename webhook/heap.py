"""What the process does with memory that it does not need at the moment."""

import ctypes
import gc

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 128 * 1024  # glibc's own threshold at the start


def settle() -> None:
    """Keep full garbage collections from walking what stays for good, and give large blocks back when they are free.

    Call it once all is loaded. Each TLS connection takes 256 KiB at once, a review up to 8 MiB. glibc raises the size
    from which blocks are the kernel's own as such blocks are freed; from then on they are cut from the heap, which
    small ones keep from shrinking: it crept up for as long as clients came and went. A C library without this setting
    is left alone.
    """
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)

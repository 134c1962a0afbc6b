"""The fingerprint of a node's pods, by which scheduler-plugins knows whether a NodeResourceTopology is up to date.

The published form: ``pfp0v001`` and 16 hexadecimal digits; xxHash64 over the sorted hashes of the pods, each the hash
of the name seeded with that of the namespace.
"""

from collections.abc import Iterable

ATTRIBUTE = "nodeTopologyPodsFingerprint"
METHOD_ATTRIBUTE = "nodeTopologyPodsFingerprintMethod"
METHOD_ALL = "all"
_PREFIX = "pfp0v001"
_MASK = (1 << 64) - 1
# xxHash64's primes.
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def of_pods(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of these pods (namespace, name), in any order."""
    hashes = sorted(xxh64(name.encode(), xxh64(namespace.encode())) for namespace, name in pods)
    return f"{_PREFIX}{xxh64(b''.join(each.to_bytes(8, 'little') for each in hashes)):016x}"


def xxh64(data: bytes, seed: int = 0) -> int:
    """XxHash64 of the data."""
    head = len(data) // 32 * 32
    if head:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        for start in range(0, head, 32):
            lanes = [_round(lane, _int(data[start + 8 * i : start + 8 * i + 8])) for i, lane in enumerate(lanes)]
        value = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            value = ((value ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        value = (seed + _P5) & _MASK
    value = (value + len(data)) & _MASK
    tail = data[head:]
    words = len(tail) // 8 * 8
    for i in range(0, words, 8):
        value = (_rotated(value ^ _round(0, _int(tail[i : i + 8])), 27) * _P1 + _P4) & _MASK
    rest = tail[words:]
    if len(rest) >= 4:
        value = (_rotated(value ^ _int(rest[:4]) * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
        rest = rest[4:]
    for byte in rest:
        value = _rotated(value ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    value = (value ^ value >> 33) * _P2 & _MASK
    value = (value ^ value >> 29) * _P3 & _MASK
    return value ^ value >> 32


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _int(data: bytes) -> int:
    return int.from_bytes(data, "little")

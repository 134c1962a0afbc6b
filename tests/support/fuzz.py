"""Mutated AdmissionReviews: what a broken, foreign or hostile client may send. The same seed makes the same requests.

Each request starts as a real review of a kind that is served, so that what is broken in it is met deep inside. Then the
object, its JSON text, the HTTP around it, or the way in which it is sent is changed, often several of them.
"""

import base64
import copy
import gzip
import json
import random
import re
import zlib
from dataclasses import dataclass
from itertools import pairwise

from support.mutations import get, moved, places, put, removed, renamed, replaced, wrapped
from support.owners import OWNER_OBJECTS
from support.reviews import (
    BLOCK,
    DOMAIN,
    GATE,
    HOST,
    KUEUE_PREFERRED,
    KUEUE_REQUIRED,
    POD_SET,
    PREFER,
    QUEUE,
    RACK,
    REQUIRE,
    UNCONSTRAINED,
    WORKLOAD,
    make_job,
    make_jobset,
    make_pod,
    make_review,
)

from crds import constants

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"

_LEVELS = (RACK, BLOCK, HOST, "cloud.example/none", "auto", "true", "", "x" * 300, "\u0000", "ä/ö", "a/b/c", "Rack")
_KEYS = (
    REQUIRE,
    PREFER,
    KUEUE_REQUIRED,
    KUEUE_PREFERRED,
    UNCONSTRAINED,
    GATE,
    POD_SET,
    WORKLOAD,
    QUEUE,
    f"{DOMAIN}/podset-slice-required-topology",
    f"{DOMAIN}/podset-slice-size",
    f"{DOMAIN}/podset-slice-required-topology-constraints",
    f"{DOMAIN}/pod-group-name",
    f"{DOMAIN}/pod-group-total-count",
    constants.NUMA_POLICY,
    constants.NUMA_RESOURCES,
    constants.GPU_LINK,
    constants.TOPOLOGY_QOS,
    constants.NUMA_PLACEMENT_PREDICTED,
    constants.NUMA_PLACEMENT_OBSERVED,
)
_LAYERS = json.dumps([{"topology": BLOCK, "size": 4}, {"topology": RACK, "size": 2}])
_WORDS = ("restricted", "single-numa-node", "require", "guaranteed", "cpu,memory", "2", "-1", "1e9", "[[[[", _LAYERS)


def _jobs():
    wishes = {constants.NUMA_POLICY: "restricted", constants.NUMA_RESOURCES: "cpu,nvidia.com/gpu"}
    slices = {f"{DOMAIN}/podset-slice-required-topology": RACK, f"{DOMAIN}/podset-slice-size": "2"}
    yield make_review(make_job({REQUIRE: RACK}), uid=UID)
    yield make_review(make_job({PREFER: "auto", **wishes}, labels={QUEUE: "team"}), uid=UID)
    yield make_review(make_job(None, template={KUEUE_REQUIRED: BLOCK, **slices}), uid=UID)
    yield make_review(make_job({UNCONSTRAINED: "true"}, template={constants.GPU_LINK: "require"}), uid=UID)
    yield make_review(make_job({REQUIRE: RACK, PREFER: RACK}, gates=(GATE, "other")), uid=UID)
    yield make_review(make_job(wishes), uid=UID)
    yield make_review(make_job(labels={QUEUE: "team"}), uid=UID)
    old = make_job({REQUIRE: RACK}, suspend=True)
    new = make_job({REQUIRE: BLOCK}, suspend=True, template={POD_SET: "main"})
    yield make_review(new, operation="UPDATE", old=old, uid=UID)
    yield make_review(make_job({REQUIRE: RACK}, completionMode="Indexed", backoffLimit=3), uid=UID, dryRun=True)


def _pods():
    yield make_review(make_pod({REQUIRE: RACK}), uid=UID)
    yield make_review(make_pod({PREFER: "auto", POD_SET: "main"}, gates=(GATE,)), uid=UID)
    yield make_review(make_pod({UNCONSTRAINED: "true", "a": "b"}, schedulerName="other"), uid=UID)
    yield make_review(make_pod({KUEUE_REQUIRED: HOST, WORKLOAD: "forged"}), uid=UID)
    yield make_review(make_pod({REQUIRE: RACK, constants.GPU_LINK: "require"}, nodeName="n1"), uid=UID)
    yield make_review(make_pod(), uid=UID)


def _jobsets():
    yield make_review(make_jobset({REQUIRE: RACK}), uid=UID)
    yield make_review(make_jobset({PREFER: "auto"}, labels={QUEUE: "team"}), uid=UID)
    yield make_review(make_jobset(), uid=UID)
    old, new = make_jobset({REQUIRE: RACK}, suspend=True), make_jobset({REQUIRE: BLOCK}, suspend=True)
    yield make_review(new, operation="UPDATE", old=old, uid=UID)


def _owners():
    """Of each kind one that waits in a queue, and one that moves to another; the first gets a patch."""
    for owner in OWNER_OBJECTS.values():
        said = {"labels": {QUEUE: "team"}, "annotations": {REQUIRE: RACK, constants.NUMA_POLICY: "restricted"}}
        body = {**owner, "metadata": {**owner["metadata"], **said}}
        yield make_review(body, uid=UID)
        moved_on = {**body, "metadata": {**body["metadata"], "labels": {QUEUE: "other"}}}
        yield make_review(moved_on, operation="UPDATE", old=body, uid=UID)


SEEDS = {
    "/mutate-job": tuple(_jobs()),
    "/mutate-jobset": tuple(_jobsets()),
    "/mutate-pod": tuple(_pods()),
    "/mutate-owner": tuple(_owners()),
}


@dataclass(frozen=True)
class Request:
    """``pieces`` are sent one after another. ``answers``: how many may come."""

    name: str
    pieces: tuple[bytes, ...]
    answers: int = 1
    reuse: bool = True  # what was sent is whole HTTP: the connection may be used again


class Raw(str):
    """JSON text that is put in as it is. Until then its value is a mark that stands for it."""

    __slots__ = ("text",)

    def __new__(cls, text):
        made = super().__new__(cls, f"\ue000{text}\ue001")
        made.text = text
        return made


def make(seed, number):
    """The request of that number."""
    dice = random.Random(f"{seed}/{number}")
    path = dice.choice(sorted(SEEDS))
    review = copy.deepcopy(dice.choice(SEEDS[path]))
    names = []
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3, 6))):
        change = dice.choice(_CHANGES)
        names.append(change.__name__)
        review = change(review, dice)
    body = _text(review, dice).encode("utf-8", "surrogatepass")
    if dice.random() < 0.35:
        change = dice.choice(_BYTES)
        names.append(change.__name__)
        body = change(body, dice)
    wire = dice.choice(_WIRES) if dice.random() < 0.25 else _plain
    names.append(wire.__name__)
    return wire(path, body, dice, " ".join(name.strip("_") for name in names))


# --- the object ---


def _anything(dice):
    return dice.choice(
        (
            lambda: None,
            lambda: dice.random() < 0.5,
            lambda: dice.choice((0, -1, 1, 2**31, -(2**63), 2**64, 10**400)),
            lambda: Raw(
                dice.choice(("NaN", "Infinity", "-Infinity", "1e999", "-0.0", "1e-999", "0x10", "01", "1.", "+1"))
            ),
            lambda: dice.choice((1.5, 1e308, -1e-308)),
            lambda: dice.choice(
                ("", "x", "x" * 5000, "\u0000", "\ud800", "\udfff\ud800", "🦀" * 50, "\u202e\ufeff", "a\nb")
            ),
            lambda: Raw('"\\ud800"'),
            lambda: Raw('"\\u12"'),
            lambda: dice.choice(_LEVELS),
            list,
            dict,
            lambda: [None, {}, [], ""],
            lambda: {"": None, "\u0000": {}, "metadata": [], "annotations": 1},
            lambda: _nested(dice, dice.choice((10, 100, 3000))),
            lambda: [0] * dice.choice((100, 10_000)),
            lambda: {f"k{number}": "v" for number in range(dice.choice((10, 2000)))},
        )
    )()


def _nested(dice, depth):
    opening, closing = dice.choice((("[", "]"), ('{"a":', "}"), ('[{"spec":', "}]")))
    return Raw(opening * depth + "1" + closing * depth)


def _replaced(review, dice):
    return replaced(review, dice, _anything)


def _doubled(review, dice):
    """The same key twice in one object."""
    found_at = [at for at in places(review) if isinstance(get(review, at), dict) and get(review, at)]
    if not found_at:
        return review
    at = dice.choice(found_at)
    found = get(review, at)
    key = dice.choice(list(found))
    again = Raw(_json(_anything(dice)))
    text = ",".join(f"{_json(name)}:{_json(each)}" for name, each in [*found.items(), (key, again)])
    return put(review, at, Raw("{" + text + "}"))


def _annotated(review, dice):
    """Keys that we read, with values that we did not expect."""
    try:
        obj = dice.choice((review["request"]["object"], review["request"]["object"]["spec"]["template"]))
        annotations = obj["metadata"].setdefault("annotations", {})
        for _ in range(dice.choice((1, 2, 8, 60))):
            value = _anything(dice) if dice.random() < 0.3 else dice.choice((*_LEVELS, *_WORDS))
            annotations[dice.choice(_KEYS)] = value
    except (KeyError, TypeError, AttributeError):
        return _replaced(review, dice)
    return review


def _addressed(review, dice):
    """Another version, kind, operation or uid."""
    try:
        request = review["request"]
        field = dice.choice(("uid", "operation", "kind", "apiVersion", "kind of review"))
        if field == "apiVersion":
            review["apiVersion"] = dice.choice(("admission.k8s.io/v1beta1", "admission.k8s.io/v2", "v1", "", None))
        elif field == "kind of review":
            review["kind"] = dice.choice(("AdmissionReviewList", "Pod", "", 1))
        elif field == "kind":
            request["kind"] = dice.choice((None, {}, {"kind": "Secret"}, {"kind": "Job"}, {"kind": "Pod"}, "Pod", []))
        elif field == "operation":
            request["operation"] = dice.choice(("UPDATE", "DELETE", "CONNECT", "", "create", "x" * 9999, 1))
        else:
            request["uid"] = dice.choice(("", "x" * 20_000, '"', "\ud800", "\u0000\u2028", None, 7, "ü" * 300))
    except (KeyError, TypeError):
        return _replaced(review, dice)
    return review


_CHANGES = (
    _replaced,
    _replaced,
    _replaced,
    removed,
    moved,
    wrapped,
    renamed,
    _doubled,
    _annotated,
    _annotated,
    _addressed,
)


# --- the text ---


def _json(value):
    """JSON of a value in which raw text may stand."""
    text = json.dumps(value, ensure_ascii=False)
    while _MARKED.search(text):
        text = _MARKED.sub(lambda found: json.loads(f'"{found[1]}"', strict=False), text)
    return text


_MARKED = re.compile('"\ue000([^\ue000\ue001]*)\ue001"')


def _text(review, dice):
    text = _json(review)
    return text if dice.random() < 0.9 else f" \n\t{text}\r\n "


def _flipped(body, dice):
    changed = bytearray(body)
    for _ in range(dice.choice((1, 1, 2, 10, 200))):
        if changed:
            changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)


def _cut(body, dice):
    return body[: dice.randrange(len(body) + 1)]


def _inserted(body, dice):
    at = dice.randrange(len(body) + 1)
    piece = dice.choice(
        (b"\x00", b"\xff\xfe", b"{", b"}", b'"', b",", b"\\", b"\xc0\x80", b"//x\n", b" " * 9000, b"[" * 40_000)
    )
    return body[:at] + piece + body[at:]


def _recoded(body, dice):
    text = body.decode("utf-8", "replace")
    return text.encode(dice.choice(("utf-16", "utf-32", "utf-8-sig", "utf-7", "utf-16-le")), "replace")


def _spliced(body, dice):
    first, second = sorted((dice.randrange(len(body) + 1), dice.randrange(len(body) + 1)))
    return dice.choice(
        (body + body, body[first:second], body[:first] + body[second:], body[second:] + body[:first], b"")
    )


def _noise(_body, dice):
    return dice.randbytes(dice.choice((1, 64, 5000)))


_BYTES = (_flipped, _flipped, _cut, _inserted, _recoded, _spliced, _noise)


# --- the wire ---


def _head(path, headers, *, method="POST", version="HTTP/1.1"):
    lines = [f"{method} {path}?timeout=10s {version}", "Host: topogate-webhook.topogate-system.svc:443"]
    return ("\r\n".join((*lines, *headers)) + "\r\n\r\n").encode("latin-1", "replace")


_JSON = ("Accept: application/json, */*", "Content-Type: application/json", "Accept-Encoding: gzip")


def _plain(path, body, _dice, name):
    return Request(name, (_head(path, (*_JSON, f"Content-Length: {len(body)}")) + body,))


def _other_type(path, body, dice, name):
    kinds = (
        "text/plain",
        "application/yaml",
        "application/json; charset=utf-16",
        "",
        "x" * 3000,
        "multipart/form-data",
        "ä",
    )
    return Request(name, (_head(path, (f"Content-Type: {dice.choice(kinds)}", f"Content-Length: {len(body)}")) + body,))


def _encoded(path, body, dice, name):
    """With a Content-Encoding, true or not; also a small body that becomes a huge one."""
    codings = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": bytes,
        "identity": bytes,
        "zstd": base64.b64encode,
    }
    coding = dice.choice(sorted(codings))
    large = b" " * 5_000_000 if dice.random() < 0.1 else body
    packed = body if dice.random() < 0.3 else codings[coding](large)[:200_000]
    return Request(
        name, (_head(path, (*_JSON, f"Content-Encoding: {coding}", f"Content-Length: {len(packed)}")) + packed,)
    )


def _chunked(path, body, dice, name):
    """In chunks, some of which are no chunks; with trailers, extensions, or no end."""
    parts, rest = [], body
    while rest:
        size = dice.choice((1, 7, 100, 4096))
        part, rest = rest[:size], rest[size:]
        parts.append(f"{len(part):x}{dice.choice(('', ';a=b', ''))}\r\n".encode() + part + b"\r\n")
        if len(parts) > 300:
            parts.append(f"{len(rest):x}\r\n".encode() + rest + b"\r\n")
            rest = b""
    parts.append(dice.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"000\r\n\r\n")))
    whole, answers = dice.random() < 0.6, 1
    if not whole:
        wrong = (
            b"-1\r\n",
            b"zz\r\n",
            b"ffffffffffffffffff\r\n",
            b"5\r\nab\r\n",
            b"\r\n\r\n",
            b"1 \r\na\r\n",
            b"0x1\r\na\r\n",
        )
        added = dice.choice(wrong)
        answers = int(dice.random() < 0.01)  # a body that makes no sense is waited for, for 10 s
        parts.insert(dice.randrange(len(parts)), added)
    extra = dice.choice(((), (), (f"Content-Length: {len(body)}",)))
    head = _head(path, (*_JSON, "Transfer-Encoding: chunked", *extra))
    return Request(name, (head, b"".join(parts)), answers, reuse=whole and not extra)


def _wrong_head(path, body, dice, name):
    """Lines that RFC 9112 does not allow, or that ask for what is not there."""
    size = len(body)
    headers = dice.choice(
        (
            (f"Content-Length: {size}", f"Content-Length: {size + 1}"),
            (f"Content-Length: {size}, {size}",),
            ("Content-Length: -1",),
            ("Content-Length: 99999999999999999999",),
            (f"Content-Length: +{size}",),
            ("Content-Length:",),
            (),
            ("Transfer-Encoding: gzip, chunked",),
            ("Transfer-Encoding: identity", f"Content-Length: {size}"),
            (f"Content-Length: {size}", "Expect: 100-continue"),
            (f"Content-Length: {size}", "Expect: the unexpected"),
            (f"Content-Length: {size}", "Connection: Upgrade", "Upgrade: websocket"),
            (
                f"Content-Length: {size}",
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                "HTTP2-Settings: AAMAAABk",
            ),
            (f"Content-Length: {size}", "X: a\x00b"),
            (f"Content-Length: {size}", " folded: x"),
            (f"Content-Length: {size}", "X y: z"),
            (f"Content-Length: {size}", "X: " + "y" * 20_000),
            (f"Content-Length: {size}", *(f"X-{number}: y" for number in range(300))),
            (f"Content-Length: {size}", "Connection: close"),
            (f"Content-Length: {size}", "Cookie: a=b; c" + ";" * 500),
        )
    )
    return Request(name, (_head(path, (*_JSON, *headers)) + body,), reuse=False)


def _other_line(path, body, dice, name):
    """Another method, path or version."""
    method = dice.choice(
        ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "post", "CONNECT", "TRACE", "P\x00ST", "POST", "")
    )
    target = dice.choice(
        (path, "/", "/metrics", "/readyz", "/mutate-job/", "//mutate-pod", "*", "/%00", "/ä", "x" * 9000, "http://[::1")
    )
    version = dice.choice(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "http/1.1", "", "HTTP/1.1 extra"))
    head = _head(target, (*_JSON, f"Content-Length: {len(body)}"), method=method, version=version)
    return Request(name, (head + body,), reuse=False)


def _no_http(_path, body, dice, name):
    start = dice.choice(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00",
            b"\r\n" * 500,
            b"\x00" * 5000,
            b"SSH-2.0-x\r\n",
            b"{",
        )
    )
    sent = start + body[:100]
    answers = 1 if sent.strip(b"\r\n") else 0  # empty lines before a request are none yet
    return Request(name, (sent + b"\r\n\r\n",), answers, reuse=False)


def _in_pieces(path, body, dice, name):
    """Slowly, in small pieces, cut anywhere."""
    whole = _head(path, (*_JSON, f"Content-Length: {len(body)}")) + body
    cuts = sorted({0, len(whole), *(dice.randrange(len(whole)) for _ in range(dice.choice((1, 3, 12))))})
    return Request(name, tuple(whole[start:end] for start, end in pairwise(cuts)))


def _pipelined(path, body, dice, name):
    """Several before the first is answered."""
    one = _head(path, (*_JSON, f"Content-Length: {len(body)}")) + body
    good = _head(path, (*_JSON, f"Content-Length: {len(GOOD[path])}")) + GOOD[path]
    count = dice.choice((2, 5, 20))
    return Request(name, (b"".join(dice.choice((one, good)) for _ in range(count)),), answers=count)


def _short(path, body, dice, name):
    """Less than was promised, and then the end."""
    promised = len(body) + dice.choice((1, 100, 10_000_000))
    return Request(name, (_head(path, (*_JSON, f"Content-Length: {promised}")) + body,), answers=0, reuse=False)


def _long(path, body, dice, name):
    """More than was promised: the rest is the begin of another request, and no good one."""
    promised = dice.randrange(len(body) + 1)
    return Request(name, (_head(path, (*_JSON, f"Content-Length: {promised}")) + body,), reuse=False)


_WIRES = (
    _other_type,
    _encoded,
    _chunked,
    _chunked,
    _wrong_head,
    _wrong_head,
    _other_line,
    _no_http,
    _in_pieces,
    _in_pieces,
    _pipelined,
    _short,
    _long,
)

GOOD = {path: json.dumps(seeds[0]).encode() for path, seeds in SEEDS.items()}


def good(path):
    """A request that nothing is wrong with."""
    return Request("good", (_head(path, (*_JSON, f"Content-Length: {len(GOOD[path])}")) + GOOD[path],))

"""Every sentence that people get from Topogate's controller and webhook, by file (``tests/data/sentences``).

A changed wording fails `tests/unit/test_sentences.py`. ``python -m support.sentences`` (in ``tests/``) writes the files
again: look at each sentence first.

- ``waiting``: why something waits, as engine and queues say it;
- ``queues``: why queues admit nothing, or not this;
- ``asking``: what is wrong with what an owner asks for, or not there yet;
- ``events``: what happens to a workload, its pods and nodes;
- ``administration``: what administrators are told, of moves, nodes, flavors and settings;
- ``nodes``: why a node takes no pod: its kubelet, its devices, the volumes of pods;
- ``changing``: what becomes of one that holds a place: it grows, others leave for it, it moves;
- ``refusals``: what the webhook refuses, and warns of;
- ``adopting``: what is said of jobs that Kueue started.
"""

from support.sentences import administration, adopting, asking, changing, events, nodes, queues, refusals, waiting

ALL = (
    waiting.GOLDEN,
    queues.GOLDEN,
    asking.GOLDEN,
    events.GOLDEN,
    nodes.GOLDEN,
    changing.GOLDEN,
    administration.GOLDEN,
    refusals.GOLDEN,
    adopting.GOLDEN,
)

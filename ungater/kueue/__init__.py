"""Beside Kueue: it keeps quota and queues, Topogate answers the admission check ``topogate.dev/topology``.

`objects` is what is read of Kueue's kinds, `decide` and `answers` are the rules (pure), `bridge` watches and writes.
"""

"""The inside of nodes, and its meaning for pods on their way there.

1. `sources` reads what a node publishes; `node_topologies` keeps it, and tells the engine of each change.
2. The engine decides the zones of each slot. `predictions` gives each pod that goes one of them, once.
3. Before a pod goes, `in_flight` asks whether it may: beside pods on their way to that node whose zones (`claim_turns`)
   or devices (`device_turns`) are open yet. A pod that may not waits for its turn there. `sent_pods` says which pods
   are on their way.
4. A pod arrives: `placement_exchange` settles which promise it used, as equal pods arrive in any order.
5. `mismatches` notes what a kubelet refused or gave otherwise; `node_backoff` says for how long such pods keep off the
   node. `notices` is the interface for events and log lines.
"""

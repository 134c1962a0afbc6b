"""Pods that were let go, until they run, and the nodes that refuse them.

1. `coming_pods` sees each event of such a pod, and keeps in its entry since when it is refused, or does not start.
2. `ungater.reconcile.let_go` decides what follows, and may leave nodes out.
3. `place_refusals` keeps the nodes that refused a pod, for pods like it in its namespace.
4. `node_refusals` counts nodes on which pod after pod does not run, whoever's, and leaves them out for all.
"""

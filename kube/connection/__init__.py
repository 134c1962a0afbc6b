"""How calls reach the API server.

1. `config` finds where it is and how to authenticate: from a pod, or from `kubeconfig` files.
2. `session` is one server to call: deadlines, and whether writes are allowed still.
3. `transport` makes the call: tries, pauses, deadline; `tls_buffers` keeps connections small.
4. `answers` decodes the body; `nesting` reads JSON that is nested as deeply as the server stores it.
"""

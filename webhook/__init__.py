"""AdmissionReview in, JSON Patch out.

`mutate` decides (pure), `checks` and `advice` hold its rules, `review` is the wire, `levels` what the flavors offer,
`answers`, `metrics` and `server` the thin shell around it.
"""

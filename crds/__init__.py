"""The API: one pydantic model a kind, and constants for every label, annotation and gate.

1. `kinds` has the models; `generate` makes ``crds/bases`` and, with `reference`, docs/api.md of them (`descriptions`
   reads the docstrings).
2. `request` reads the annotations of jobs, with `slices`, `levels` and `native_groups`: for the webhook and the
   controller alike. `spelling` finds the name that a wrong one is closest to.
3. `settings` are those of all components, with `device_settings`, `preemption` and `setting_words`.
4. Annotations and statuses that Topogate writes are spelled by `assignment`, `numa_placement`, `admitted_quota`,
   `device_annotations` and `graph`; `names` names objects.

`constants` has every key; `topology_labels` is about labels of other tools.
"""

"""``topogate migrate``: taking over from another queue.

The flow of ``topogate migrate kueue``:

    files, folders, stdin, or a cluster
      source_objects     what there is of Kueue, each object with its place
      convert            all objects together; each kind by its table of Kueue's fields
        older_versions   in the words of v1beta2
        leaves           every value of an object is judged by itself, so that none is forgotten
        convert_flavors, convert_queues, convert_checks, convert_settings (feature_gates)
        our_kinds        what our API would refuse, before an API server does
      judge_workloads    keys on jobs and pods, which stay as they are
    a report: objects of ours, settings, and a row for each object and field
      rendering          for a person
      apply_objects      into a cluster
    check                without a conversion: who would queue the jobs of a cluster
"""

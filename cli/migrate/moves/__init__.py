"""Moving queues from a Kueue that runs to Topogate, and back, while their jobs run on.

The flow of ``--move``, ``--back`` and ``--finish``:

    sight           what there is of Kueue and of Topogate, as far as a move asks for it
    steps           which queues and namespaces move together, and what there is to say of that
    backup          what Kueue's queues were before: ConfigMap topogate-migration
    rights          what whoever runs the command may not do, before anything is changed
    phase_walk      phase after phase, and the wait until nothing is under way
      phases        what is to be done next, from what is there: each command can be run again at any point
      quiet         what Kueue has in hand, which has to end before its queues are handed over
      kueue_spec    Kueue's queue while it is on hold, and afterwards
      our_objects   what is made of Kueue's queues here, and who would lend the same quota twice
      meanwhile     what others change while a command runs
    handover        --move
    take_back       --back; kueue_workloads: what Kueue needs to let a job run on that was started here
    finish          --finish: what is Kueue's is deleted
"""

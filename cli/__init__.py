"""The ``topogate`` command: one module or folder for each of its commands.

1. `main` finds the command by name, and imports its module only then.
2. A command reads a cluster once (`cluster`: live, or from a file of `snapshot`) into the controller's own cache.
3. It asks the code of the controller, the queues or the engine, and makes a report.
4. `output` shows the report: tables for people, JSON and YAML for programs, errors in one line.

`run` starts the components (webhook, ungater, agent) as processes of their own, which import little; `settled` finds
their settings. `whatif` and `simulate` need no cluster. `local` and `demo` bring one up.
"""

import os

# Before numpy is imported, whose BLAS starts a thread a core at once: a fifth of a command's CPU on two cores. Nothing
# here asks BLAS for anything: the engine's tables are of integers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

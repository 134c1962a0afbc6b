"""The topogate command."""

import os

# Before numpy is imported, whose BLAS starts a thread a core at once: a fifth of a command's CPU on two cores. Nothing
# here asks BLAS for anything: the engine's tables are of integers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

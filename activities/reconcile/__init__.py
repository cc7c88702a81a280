"""The reconciler: find runs and stores that need repair.

cut_off    runs that Temporal ended, which could not announce it
queries    the reconciler's requests to the server and to runs, within bounds
reconcile  `reconcile`: check the runs of a task queue and their stores, and repair what is safe; checks of runs
stores     checks of stores: abandoned claims, leftovers of deleted runs
"""

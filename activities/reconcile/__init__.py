"""The reconciler: find runs and stores that need repair.

queries    what it asks for that
reconcile  `reconcile`: a look at the runs of a task queue and their stores, which repairs what is safe
runs       what it looks at
stores     what it looks at
"""

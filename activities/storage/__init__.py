"""Storage of runs: the workspace folder, the store, large payloads.

object_store  a run's store and large payloads on an object store
store         the interface of a run's store, and the store on a disk
watchers      the runs that are watched now
workspace     a run's folder, and safe access to it
"""

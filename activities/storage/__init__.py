"""Where runs keep bytes: the workspace folder, the store, large payloads.

object_store  on an object store
payloads      large payloads, there too
safe_dir      how it is opened safely
store         a run's store on a disk
workspace     a run's folder, and nothing outside it
"""

"""A run's files: opened, closed, forked, and read after its end.

closed_turn  how a turn of a conversation ended, read from its history
definition  the snapshot of its agent, and how another one differs from it
files       `open_run` and `close_segment`: a run's files and its store
first_run   which run had an id first: a later one has keys of its own
fork        `inherit`: what a resumed or forked run begins with
outcome     how a run has ended, and what it brings: its outcome, and the files that it names
snapshot    a run's snapshot, read whole
status      `watch_run`: waits for the end of a run that its watcher has no handle for
"""

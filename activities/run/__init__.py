"""A run's files: opened, closed, forked, and read after its end.

closed_turn  the end of a conversation's turn, read from its history
definition  the snapshot of a run's agent, and its differences from the current one
files       `open_run` and `close_segment`: a run's files and its store
first_run   the first run of an id; a later one gets its own keys
fork        `inherit`: the initial state of a resumed or forked run
outcome     a run's end, its outcome, and the files that it names
snapshot    reading all pages of a run's snapshot
status      `watch_run`: waiting for the end of a run by its workflow id
"""

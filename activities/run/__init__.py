"""A run's files: opened, closed, forked, and read after its end.

definition   the snapshot of a run's agent, and its differences from the current one
files        `open_run` and `close_segment`: a run's files and its store
fork         `inherit`: the initial state of a resumed or forked run
outcome      a run's end, its outcome, and the files that it names
status       a run as the server has it: its status, its state, a turn's end; `watch_run` waits for its end
tool_search  the tool `search_tools`: BM25 over the tools of a definition
"""

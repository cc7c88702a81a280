"""A run's files: opened, closed, forked, and read after its end.

account     the account of a run, for budgets and logins
definition  what a run keeps of its agent: tools, prompt, plan; the search of tools
files       `open_run`, `close_segment`, `inherit`: a run's files
outcome     a run's end, its outcome, and the files that it names
status      a run as the server has it: its status, its state, a turn's end; `watch_run` waits for its end
"""

"""`perdure crashtest`: plays of a user's agent, with the worker or the server killed.

case     the case: its form, reading it, and writing one from a recorded run
command  the command
compare  the facts of a play, and the comparison with the whole one
crash    the whole play, the killed ones, and their verdicts
kills    the moments of the kills
play     one play: its folder, model, workers, answers and facts
report   the table, JSON and JUnit XML
tree     the run of a play and its subtasks, followed by their histories
worker   a worker process that kills itself at one moment
"""

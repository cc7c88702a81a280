"""Runs from the outside, through a Temporal client: no module here starts a worker or loads settings.

connection  the connection to Temporal, and the search attributes it needs
dead_letters  what failed to begin or to be delivered
details     a run, shown: the one form of all doors
door        what each door does before it sends: the checks of a start, and the sender
errors      the exceptions of these operations
files       files of runs: attachments and artifacts
guard       a guard against another server at the address of the one that a client met first
lanes       conversations: submit, wait for, forget a turn; steer a run
overview    a project in short: recent, open and failed runs, and counts of features
questions   the open questions of all runs, with filters
run_events  the events of a run
run_list    runs as the server lists them, and the sender that started one
runs        operations on one run: start, resume, fork, query, answer, signal, wait for its end
watch       a run's history, and the run as a stream of events
course/     the course of a run, for protocols of other front ends
records/    records of runs: the reader of their events, facts, export, signed record
"""

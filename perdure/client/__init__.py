"""Runs from the outside, through a Temporal client: no module here starts a worker or reads a project's settings.

batches       the pool of batches of a task queue, as commands show it
connection    the connection to Temporal, and the search attributes it needs
door          the sender that this process writes into all that it sends
errors        the exceptions of these operations
event_reader  a run's events, read from its history
files         files of runs: attachments and artifacts
history       every event of a run's history, its payloads decoded
lanes         conversations: submit, wait for, forget a turn; steer a run
questions     the open questions of all runs, with filters
run_events    the events of a run
run_list      runs as the server lists them, and the sender that started one
runs          operations on one run: start, resume, fork, query, answer, signal, wait for its end; external events
schedules     scheduled runs
watch         a run as a stream of events
records/      records of runs: facts, export, signed record
"""

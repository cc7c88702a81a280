"""Runs from the outside, through a Temporal client: no module here starts a worker or reads a project's settings.

connection  the connection to Temporal, and the search attributes it needs
door        the sender that this process writes into all that it sends
errors      the exceptions of these operations
export      one run as one record
history     every event of a run, its payloads decoded
lanes       conversations: submit, read, forget a turn
publish     external events, to their topic
run_events  the events of a run
run_list    runs as the server lists them
runs        operations on one run: start, resume, fork, query, answer, signal, wait for its end
schedules   scheduled runs
starter     the sender that started a run
watch       a run as a stream of events
"""

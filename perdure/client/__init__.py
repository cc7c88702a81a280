"""Runs from outside, through a Temporal client: nothing here makes a worker, or reads a project's settings.

connection  where Temporal is, and what it must know of us first
door        where this process sends from: written into all that it sends
errors      why something could not be done, as whoever asked should hear it
export      one run as one record
history     every event of a run, its payloads decoded
lanes       the same with a conversation
publish     what happened outside, to its topic
run_events  what can
run_list    runs as the server lists them
runs        what is done with one: start, resume, fork, ask, speak to, wait for its end
schedules   runs that begin by the clock
starter     who started a run
watch       a run as a stream of what happens in it
"""

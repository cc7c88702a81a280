"""Runs from outside, through a Temporal client: nothing here makes a worker, or reads a project's settings.

connection  where Temporal is, and what it must know of us first
runs        what is done with one: start, resume, fork, ask, speak to, wait for its end
door        where this process sends from: written into all that it sends
lanes       the same with a conversation
events      what happened outside, to its topic
schedules   runs that begin by the clock
found       runs as the server lists them
watch       a run as a stream of what happens in it (happenings: what can)
starter     who started a run
history     every event of a run, its payloads decoded
export      one run as one record
refusals    why something could not be done, as whoever asked should hear it
"""

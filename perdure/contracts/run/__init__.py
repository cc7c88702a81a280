"""A run: its state, its limits, its transcript, and its input and output.

events          the agentic.* events, field for field as in their source
export          one run as one record, for an audit
journal         the eight sections of the run journal
limits          the bounds of a run: steps, turns, time, budgets, and its share of one
loop_detection  a run's latest calls, and loops found in them
signals         questions to people, and their messages: answers and cancel requests
state           a run's state, and the view that the query `state` returns
transcript      parts, segments and pages: the conversation by reference
turn            one model call: request, reply, and a context that is full
"""

"""Mailboxes: which messages are accepted, whose turn it is, and what the files say.

admission  a claimed file: admitted, repeated, blocked or dead; an open message, from state to state
files      the contents of the files about a message: acks, task states, `task.md`
inputs     the choice of an input file among the candidates
poll_mode  the poll mode of a bridge: running, idle, dormant or standby
turns      the queue of admitted messages, in which plans and their tasks take turns
"""

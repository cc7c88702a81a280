"""Mailboxes: which messages are accepted, and what happens to each.

capacity   the limits of a mailbox's state
commands   the next tasks for a folder's bridges, and their results
delivery   an open message, from state to state
files      the contents of the files about a message: acks, task states, `task.md`
inputs     the choice of an input file among the candidates
peers      subtasks for outside peers
poll_mode  the poll mode of a bridge: running, idle or dormant
state      a mailbox: the messages it accepts, their outcomes, its memory and its dead letters
view       the text that people read about a mailbox
"""

"""Mailboxes: which messages are accepted, and what happens to each.

ack           the contents of ack files and task-state files
capacity      the limits of a mailbox's state
commands      the next tasks for a folder's bridges, and their results
dead_letters  dead letters, and their redelivery
delivery      an open message, from state to state
inputs        the choice of an input file among the candidates
peers         subtasks for outside peers
poll_mode     the poll mode of a bridge: running, idle or dormant
state         a mailbox: the messages it accepts, their outcomes, and its memory
task_file     the page `task.md`
view          the text that people read about a mailbox
"""

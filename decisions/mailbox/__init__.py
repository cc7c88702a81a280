"""Mailboxes: which messages are accepted, and what happens to each.

ack           what the files tell of a message and of its task
capacity      what there is room for
commands      what the bridges of a folder are to do next, and what comes of it
dead_letters  dead letters, and how they come back
delivery      a message in hand, from state to state
inputs        which file is an input of a task, of those that fit
peers         subtasks for peers outside
poll_mode     how awake a bridge is
state         which messages a mailbox takes, what becomes of each, and what it remembers
task_file     its page
view          what a person reads of a mailbox
"""

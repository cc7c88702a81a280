"""Mailbox folders: claim, deliver, answer and archive messages as files.

client    requests to the server: the ends of runs, deliveries and signals to a mailbox
commands  `carry`: run a mailbox's orders in its folder
delivery  a claimed file as a delivery to the mailbox
folder    the folder: scan for files, claim and move them
in_hand   the open messages of a mailbox, and what they wait for
inputs    the input files of a task
intake    `take`: submit a message to its lane
message   a message as a file, read strictly
pages     `task.md`
picks     the input files that a person picks
rest      the check that a file is written completely
result    the result of a task's run
watch     a watcher that wakes a bridge on changes
writer    the files that a mailbox writes: acks, task states, replies, copies
"""

"""Mailbox folders: claim, deliver, answer and archive messages as files.

client    requests to the server: deliveries and signals to a mailbox, ends and results of runs, open work
commands  `carry`: run a mailbox's orders in its folder
folder    the folder: scan for files, claim and move them
inputs    the input files of a task
intake    a claimed file as a delivery to the mailbox; `take`: submit a message to its lane
message   a message as a file: its names, when it is complete, its content
pages     `task.md`
picks     the input files that a person picks
watch     a watcher that wakes a bridge on changes
writer    the files that a mailbox writes: acks, task states, replies, copies
"""

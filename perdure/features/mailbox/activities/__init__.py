"""Mailbox folders: claim, submit, answer and archive messages as files.

folder   the folder: scan for files, claim and move them; which bridge serves it
handler  an admitted message: submitted to its lane, and its end written; a skipped or dead file
inputs   the input files of a task
message  a message as a file: its names, when it is complete, its content
pages    `task.md`
peers    subtasks for an agent that lives outside, as activities of its bridge
picks    the input files that a person picks
records  what the folder remembers of each task
server   requests to the server: the ends and results of runs, and what open messages wait for
watch    a watcher that wakes a bridge on changes
writer   the files that a mailbox writes: acks, task states, replies, copies
"""

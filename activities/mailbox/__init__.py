"""Mailbox folders: claim, deliver, answer and archive messages as files.

client    `look_at_turns` and `dispatch_mail`: what a mailbox asks the server, and how a subtask gets into one
commands  `carry`: what a mailbox orders done in its folder
delivery  what the mailbox is told of one
folder    that folder: what has come, claims, and where each file goes
in_hand   what all that is in hand waits for
inputs    the files that its task needs
intake    the way of a message into its lane
message   a message as a file, read strictly
pages     `task.md`
picks     what a person has picked
rest      whether a file may still be being written
result    what became of its run
watch     wakes a bridge when something comes
writer    what the folder is told of a message
"""

"""Mailboxes: messages as files, and what a mailbox and its bridges exchange.

commands  tasks for the bridges of a folder, and their results
delivery  an admitted message and its end
mailbox   a mailbox's requests, state and views
message   a message as a file
peers     subtasks for peers that live outside, and their replies
"""

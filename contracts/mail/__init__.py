"""Mailboxes: messages as files, and what a mailbox and its bridges exchange.

commands  what bridges are to do in a folder, and what came of it
delivery  a message in hand
mailbox   what a mailbox is told, keeps and shows
message   a message as a file
peers     subtasks for peers that live outside, and their replies
"""

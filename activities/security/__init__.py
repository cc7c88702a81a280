"""Secrets, redaction, and private files.

private    folders and files of this user alone
redaction  how they are kept from leaving an activity
secrets    the secrets of the process, and what they look like
"""

"""Secrets, redaction, and private files.

private    Files and folders that only this user may read
redaction  Redaction of results, heartbeats and failures
secrets    The secrets of the process, and their encoded forms
"""

"""Notices to people, and events of theirs that begin work.

channels  the channels: a signed webhook, Slack, and the services of Apprise
inbound   `prepare_start` and `submit_start`
notices   `send_notice` and `is_question_open`
"""

"""The mailbox: work for an agent as files in a folder, with deduplication and dead letters.

A bridge is a client of lanes, as every other entry point is: what is in hand stands in the folder, and no workflow
keeps it a second time.

bridge       the process between a folder and the lanes: claims files, brings messages to their end
commands     `mail`
contract     messages as files, what a folder remembers of them, and what delegations exchange with outside peers
places       the mailboxes of a project, and what is in them
routes       the gateway's list of mailboxes
activities/  the folder: claim, submit, answer and archive messages as files
rules/       which messages are accepted, whose turn it is, and what the files say
"""

from perdure.registry import Command, Feature

FEATURE = Feature(
    routes="perdure.features.mailbox.routes:router",
    commands={
        "mail": Command(
            "perdure.features.mailbox.commands:mail_command",
            "Runs",
            "Run the bridge between a folder and an agent's mailbox.",
        )
    },
)

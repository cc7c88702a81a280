"""The door for front ends of AG-UI: threads over server-sent events, with interrupts. It is off until it is named.

contract  a posted run: what is taken from it
events    the course of a run as events, and as messages
routes    the gateway's routes of threads
settings  `[ag_ui]`
threads   a thread as a chat: send, resume, reply
"""

from perdure.registry import Feature

FEATURE = Feature(
    tables=("perdure.features.ag_ui.settings:AG_UI",),
    gateway="perdure.features.ag_ui.settings:read_ag_ui",
    routes="perdure.features.ag_ui.routes:router",
)

"""The door for agents elsewhere: runs as tasks of A2A, with an address and a card per agent. Off until it is named.

card      an agent's card
messages  a message as a goal or an answer, and the messages of a task
routes    the gateway's routes: the calls, and the card
settings  `[a2a]`
tasks     the calls of A2A over the client
views     a run as a task, and its course as the events of a stream
"""

from perdure.registry import Feature

FEATURE = Feature(
    tables=("perdure.features.a2a.settings:A2A",),
    routes="perdure.features.a2a.routes:router",
)

"""The door for front ends of the AI SDK: chats over the UI message stream. It is off until a project names it.

chats     a chat as a conversation: send, decide, reply, read
contract  a posted chat: what is taken from it
messages  the parts of a stream as a message
parts     the course of a run as parts of the stream
routes    the gateway's routes of chats
settings  `[web_ui]`
"""

from perdure.registry import Feature

FEATURE = Feature(
    tables=("perdure.features.web_ui.settings:WEB_UI",),
    gateway="perdure.features.web_ui.settings:read_web_ui",
    routes="perdure.features.web_ui.routes:router",
)

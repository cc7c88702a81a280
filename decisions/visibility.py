"""What a visibility query says of ids and names, which may have any characters in them.

By a backslash, a double quote, or a single one at the end the server finds nothing, however it is escaped. So it is
asked for what stands before a quote or backslash, and whoever asks looks through what is found.
"""

import re


def named(attribute: str, value: str) -> str:
    """That the attribute has this value, or one that begins like it."""
    return f"{attribute} = '{value}'" if _asked(value) == value else begins(attribute, value)


def unlike(attribute: str, value: str) -> str:
    """That it has another one, or any."""
    return f"{attribute} != '{value}'" if _asked(value) == value else f"{attribute} IS NOT NULL"


def begins(attribute: str, prefix: str) -> str:
    return f"{attribute} STARTS_WITH '{_asked(prefix)}'"


def _asked(text: str) -> str:
    return re.split(r"""["'\\]""", text, maxsplit=1)[0]

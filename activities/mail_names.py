"""The names of a message's file: as it came, and as it is called from its claim on."""

import os
import secrets
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

ENVELOPE = ".envelope.json"
NOT_READY = (".tmp", "~", ".part", ".swp")
MOST_KEPT = 180  # bytes of a file's own name in its new one
MOST_PENDING = 230  # bytes of a name in `.pending/`: what is written beside the file has longer names


def is_skipped(name: str) -> bool:
    """Hidden, not ready yet, or what travels with another file."""
    return name.startswith(".") or name.endswith((*NOT_READY, ENVELOPE))


def envelope_of(name: str) -> str:
    return f"{name.removesuffix(Path(name).suffix)}{ENVELOPE}"


def reason_of(file: str) -> str:
    return f"{file}.reason.json"


def new_name(name: str) -> str:
    """Different each time, and of characters that can be told everywhere."""
    known = "".join(each if each.isprintable() else "_" for each in name.encode(errors="replace").decode())
    stem, suffix = Path(known).stem, Path(known).suffix.encode()[:40].decode(errors="ignore")
    kept = stem.encode()[: MOST_KEPT - len(suffix.encode())].decode(errors="ignore")
    mark = f"-{sha256(os.fsencode(name)).hexdigest()[:6]}" if kept + suffix != name else ""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}~{kept}{mark}{suffix}"

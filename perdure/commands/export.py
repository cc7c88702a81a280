"""`perdure trace --export`: the record of a run as one file. `perdure verify` checks a signed one."""

import asyncio
import errno
import json
import os
from datetime import datetime
from functools import partial
from hashlib import file_digest
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import Any

import click
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from perdure.activities.storage.workspace import PrivateDir
from perdure.client.records.record import (
    TimestampError,
    Verification,
    check_subject,
    check_timestamp,
    list_events,
    load_library,
    request_timestamp,
    sign_events,
    verify_record,
)
from perdure.contracts.models import is_utf8
from perdure.decisions.errors import ReportedError
from perdure.decisions.people.signature import public_text
from perdure.decisions.text.formatting import truncate
from perdure.python_client import Perdure
from perdure.session import Needs, open_session
from perdure.settings import load_settings
from perdure.terminal.command import (
    STDOUT,
    as_json_option,
    async_command,
    console,
    file_type,
    format_examples,
    print_error,
)

MAX_FINDINGS = 50  # printed
NOT_A_RECORD = "not a signed record; `perdure trace RUN --export FILE --sign KEY` writes one"


async def export_run(
    run_id: str, target: str, *, with_subtasks: bool, key_file: Path | None = None, authority: str | None = None
) -> int:
    """Write the record of a run to a file or to standard output; report missing parts.

    It is signed if there is a key, and has a time stamp if there is the URL of an authority.
    """
    settings = load_settings()
    key = _read_signing_key(key_file) if key_file else None
    if authority:
        load_library()  # its absence is reported before a long history is read
    if target != STDOUT:
        _check_path(Path(target))
    async with open_session(settings, Needs.answers) as session:
        asks = session.ui is not None or await session.has_worker()
        record = await Perdure.over(session).get_run(run_id).record(subtasks=with_subtasks, asks=asks)
    data = await asyncio.to_thread(_format_signed, record, key, authority) if key else _format_json(record)
    _write_data(target, data)
    for line in record["missing"]:
        print_error(f"missing: {truncate(line, 300)}")
    return 0


def _format_json(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, indent=1, ensure_ascii=False)
    if not is_utf8(text):  # a lone surrogate, which JSON can represent and UTF-8 cannot
        text = json.dumps(fields, indent=1)
    return f"{text}\n".encode()


def _format_signed(fields: dict[str, Any], key: Ed25519PrivateKey, authority: str | None) -> bytes:
    stamp = partial(request_timestamp, authority) if authority else None
    return b"".join(sign_events(list_events(fields), key, lambda: token_hex(16), stamp))


def _write_data(target: str, data: bytes) -> None:
    if target == STDOUT:
        click.echo(data, nl=False)
        return
    path = Path(target)
    try:
        PrivateDir(path.parent).write(data, path.name)
    except OSError as error:
        raise OSError(f"{path}: {error.strerror}") from error  # the path that the user passed
    console.print(f"written: {target}, {len(data):,} bytes", soft_wrap=True, markup=False)


def _check_path(path: Path) -> None:
    """Check the path before a long history is read for it. Raises OSError."""
    error = errno.EISDIR if path.is_dir() else None if path.parent.is_dir() else errno.ENOENT
    if error is not None:
        raise OSError(f"{path}: {os.strerror(error)}")


def _read_file(path: Path) -> bytes:
    """Raises ReportedError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReportedError(f"{path}: {error.strerror}") from None


def _read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read a PEM file. Raises ReportedError."""
    try:
        key = load_pem_private_key(_read_file(path), None)
    except TypeError:
        raise ReportedError(f"{path} is encrypted; --sign takes a key without a password") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ReportedError(f"{path} has no Ed25519 key in PEM; make one: openssl genpkey -algorithm ed25519")
    return key


def _read_public_key(path: Path) -> str:
    """Read a PEM file, and return the key as base64. Raises ReportedError."""
    try:
        key = load_pem_public_key(_read_file(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ReportedError(f"{path} has no public Ed25519 key in PEM; get it by: openssl pkey -in KEY -pubout")
    return public_text(key)


@click.command("verify", epilog=format_examples("verify run.record", "verify run.record --key record.pub"))
@click.argument("file", type=file_type)
@click.option("--key", "key_file", type=file_type, metavar="FILE", help="The public key that must have signed it, PEM.")
@click.option(
    "--artifacts",
    "folder",
    type=file_type,
    metavar="DIR",
    help="Also compare the artifacts in this folder of the run.",
)
@click.option(
    "--tsa-cert",
    "roots_file",
    type=file_type,
    metavar="FILE",
    help="Also check its time stamp, with these root certificates, PEM.",
)
@as_json_option
@async_command()
async def verify_command(
    file: Path, key_file: Path | None, folder: Path | None, roots_file: Path | None, as_json: bool
) -> int:
    """Check a signed record: its events, their order, its signature.

    Exit code 0 if it holds, 1 if not. Erased texts are counted; they do not break a record.
    """
    lines = BytesIO(_read_file(file))
    result = verify_record(lines, _read_public_key(key_file) if key_file else None)
    if not (result.count or result.key):
        raise ReportedError(f"{file}: {NOT_A_RECORD}")
    if folder is not None:
        result.findings += _compare_artifacts(result.artifacts, folder)
    stamped_at = _check_timestamp(result, roots_file)
    if as_json:
        fields = {"events": result.count, "erased": result.erased, "key": result.key, "findings": result.findings}
        time = stamped_at.isoformat() if stamped_at else None
        stamp = None if result.timestamp is None else "checked" if roots_file else "not checked"
        click.echo(json.dumps({"holds": not result.findings, **fields, "timestamp": stamp, "stamped_at": time}))
    else:
        _print_verification(result, stamped_at, is_key_known=key_file is not None)
    return 1 if result.findings else 0


def _check_timestamp(result: Verification, roots: Path | None) -> datetime | None:
    """Return the time of the record's time stamp. If there is none, or it is not valid, that is a finding.

    Without roots it is not known who made it, and only one that is none, or of something else, is found.
    """
    if result.timestamp is None:
        result.findings += ["the time stamp is missing"] if roots else []
        return None
    try:
        if roots:
            return check_timestamp(result.timestamp, result.stamped, _read_file(roots))
        check_subject(result.timestamp, result.stamped)
    except TimestampError as error:
        result.findings.append(f"the time stamp is not valid: {error}")
    except ReportedError:
        if roots:  # else, without the optional package, it is named as not checked
            raise
    return None


def _print_verification(result: Verification, stamped_at: datetime | None, *, is_key_known: bool) -> None:
    for finding in result.findings[:MAX_FINDINGS]:
        console.print(truncate(finding, 300), soft_wrap=True, markup=False)
    if more := len(result.findings[MAX_FINDINGS:]):
        console.print(f"and {more:,} more")
    whose = "the key of --key" if is_key_known else "a key that you should compare, or give by --key"
    verdict = "does not hold" if result.findings else "holds"
    console.print(f"{verdict}: {result.count:,} events", soft_wrap=True)
    if not result.findings:
        console.print(f"signed with {result.key}, {whose}", soft_wrap=True, markup=False)
    if stamped_at is not None:
        console.print(f"signed before {stamped_at:%Y-%m-%d %H:%M:%S} UTC, by an authority of --tsa-cert")
    elif result.timestamp is not None:
        console.print("who made its time stamp was not checked: give --tsa-cert")
    if result.erased:
        console.print(f"{result.erased:,} texts were erased; their hashes are there")


def _compare_artifacts(artifacts: dict[str, str], folder: Path) -> list[str]:
    """Return the artifacts that are missing or differ. A path that leads out of the folder is not read."""
    findings = []
    for name, expected in artifacts.items():
        path = folder / name
        if not (path.resolve().is_relative_to(folder.resolve()) and path.is_file()):
            findings.append(f"artifact {name} is not in {folder}")
            continue
        with path.open("rb") as data:
            if file_digest(data, "sha256").hexdigest() != expected:
                findings.append(f"artifact {name} was changed")
    return findings

"""`trace --export`: one run as one file, for an audit."""

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from activities.security.private import open_private
from decisions.text.formatting import cut
from perdure.session import Needs, session
from perdure.terminal.command import complain, console
from settings import load

STDOUT = "-"


async def export_run(run_id: str, target: str, *, with_subtasks: bool) -> int:
    """Writes the run's record to a file, or to standard output; what could not be had is said."""
    from activities.storage.store import LocalStores
    from perdure.client.export import Exporter
    from perdure.process.project import looked_at

    settings = load()
    if target != STDOUT:
        _must_be_a_place(Path(target))
    async with session(settings, Needs.answers) as here, looked_at(settings) as project:
        asks = here.ui is not None or await here.has_worker()
        exporter = Exporter(here.client, project.stores, LocalStores(settings.workspaces), asks)
        record = await exporter.export(run_id)
        told: dict[str, Any] = record.model_dump(mode="json")
        if with_subtasks:
            exporter.asks = record.state is not None  # who did not answer once is not waited for again
            for each in told["subtasks"]:
                each["export"] = (await exporter.export(each["run_id"])).model_dump(mode="json")
    text = json.dumps(settings.secrets.redact_value(told), indent=1, ensure_ascii=False) + "\n"
    data = _encoded(text)
    if target == STDOUT:
        click.echo(data, nl=False)
    else:
        _write(Path(target), data)
        console.print(f"written: {target}, {len(data):,} bytes", soft_wrap=True, markup=False)
    for line in record.missing:
        complain(f"not in it: {cut(line, 300)}")
    return 0


def _must_be_a_place(path: Path) -> None:
    """Said before a long history is read for it."""
    fault = errno.EISDIR if path.is_dir() else None if path.parent.is_dir() else errno.ENOENT
    if fault is not None:
        raise OSError(f"{path}: {os.strerror(fault)}")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can say and UTF-8 cannot
        return (json.dumps(json.loads(text), indent=1) + "\n").encode()


def _write(path: Path, data: bytes) -> None:
    """As a whole or not at all."""
    part = path.parent / f".{path.name}.part"
    try:
        with open(part, "wb", opener=open_private) as file:
            file.write(data)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OSError(f"{path}: {error.strerror}") from error  # by the name that the person has given

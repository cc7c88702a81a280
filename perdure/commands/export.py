"""`perdure trace --export`: the record of a run as one file."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import click

from activities.storage.safe_dir import PrivateDir
from contracts.models import is_utf8
from decisions.text.formatting import truncate
from perdure.session import Needs, open_session
from perdure.terminal.command import console, print_error
from settings import load_settings

STDOUT = "-"


async def export_run(run_id: str, target: str, *, with_subtasks: bool) -> int:
    """Write the record of a run to a file or to standard output; report missing parts."""
    from activities.storage.store import LocalStores
    from perdure.client.export import Exporter
    from perdure.process.project import display_project

    settings = load_settings()
    if target != STDOUT:
        _check_path(Path(target))
    async with open_session(settings, Needs.answers) as session, display_project(settings) as project:
        asks = session.ui is not None or await session.has_worker()
        exporter = Exporter(session.client, project.stores, LocalStores(settings.workspaces), asks)
        record = await exporter.export(run_id)
        fields: dict[str, Any] = record.model_dump(mode="json")
        if with_subtasks:
            exporter.asks = record.state is not None  # do not wait again for a worker that did not answer
            for subtask in fields["subtasks"]:
                subtask["export"] = (await exporter.export(subtask["run_id"])).model_dump(mode="json")
    shown = settings.secrets.redact_value(fields)
    text = json.dumps(shown, indent=1, ensure_ascii=False)
    if not is_utf8(text):  # a lone surrogate, which JSON can represent and UTF-8 cannot
        text = json.dumps(shown, indent=1)
    data = f"{text}\n".encode()
    if target == STDOUT:
        click.echo(data, nl=False)
    else:
        path = Path(target)
        try:
            PrivateDir(path.parent).write(data, path.name)
        except OSError as error:
            raise OSError(f"{path}: {error.strerror}") from error  # the path that the user passed
        console.print(f"written: {target}, {len(data):,} bytes", soft_wrap=True, markup=False)
    for line in record.missing:
        print_error(f"missing: {truncate(line, 300)}")
    return 0


def _check_path(path: Path) -> None:
    """Check the path before a long history is read for it. Raises OSError."""
    error = errno.EISDIR if path.is_dir() else None if path.parent.is_dir() else errno.ENOENT
    if error is not None:
        raise OSError(f"{path}: {os.strerror(error)}")

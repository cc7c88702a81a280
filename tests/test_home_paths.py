"""A `~` in a path of a file or a variable is the home folder, as a shell has it."""

import json
from pathlib import Path

import pytest

from perdure.features.mcp.activities.config import StdioServer
from perdure.settings import ProjectError, load_settings
from perdure.settings.tools import HttpToolSettings

TOOL = '[tools.t]\nkind = "http"\nurl = "https://a.test"\ndescription = "x"\ninput_schema = "{path}"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return (tmp_path / "home").resolve()


def write_project(folder: Path, schema: str = "~/t.json", command: str = "~/bin/serve", cwd: str = "~/data") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "perdure.toml").write_text(TOOL.format(path=schema), encoding="utf-8")
    servers = {"mcpServers": {"s": {"command": command, "args": ["~"], "cwd": cwd}}}
    (folder / ".mcp.json").write_text(json.dumps(servers), encoding="utf-8")


def test_paths_of_files_and_variables_may_begin_at_home(home: Path) -> None:
    write_project(home / "project")
    (home / "t.json").write_text('{"type": "object", "title": "from home"}', encoding="utf-8")
    places = {"PERDURE_HOME": "~/state", "PERDURE_WORKSPACE": "~/runs"}
    settings = load_settings({"PERDURE_CONFIG": "~/project/perdure.toml", **places})
    assert (settings.folder, settings.home, settings.workspaces) == (home / "project", home / "state", home / "runs")
    tool, server = settings.file.tools["t"], settings.servers["s"]
    assert isinstance(tool, HttpToolSettings)
    assert isinstance(tool.input_schema, dict)
    assert tool.input_schema["title"] == "from home"
    assert isinstance(server, StdioServer)
    assert (server.command, server.cwd, server.args) == (str(home / "bin/serve"), home / "data", ("~",))


@pytest.mark.parametrize("changed", ["schema", "command", "cwd"])
def test_an_unknown_home_folder_is_rejected_in_one_line(home: Path, changed: str) -> None:
    (home / "t.json").write_text('{"type": "object"}', encoding="utf-8")
    write_project(home / "project", **{changed: "~no-such-user-here/x"})
    with pytest.raises(ProjectError, match="no-such-user-here/x: no such home folder"):
        load_settings({}, home / "project")

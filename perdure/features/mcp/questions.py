"""The question "log in to this server": one for all runs that need it, and for each time that a login is over.

That of a requester names them, and is for them alone.
"""

from urllib.parse import quote, urlsplit

from temporalio.client import Client

from perdure.decisions.text.formatting import truncate
from perdure.features.mcp.activities.config import HttpServer, McpServer
from perdure.features.mcp.activities.grants import Grant, GrantStore, NeedsLoginError, format_login_command
from perdure.features.mcp.rules import render_visible_line
from perdure.features.project_questions.client import settle_question
from perdure.features.project_questions.contract import QuestionInput

LOGGED_IN, REFUSE = "logged in", "refuse"


def login_question(server: McpServer, needs: NeedsLoginError) -> QuestionInput:
    """Return the question. A login at the gateway, or by `perdure mcp login`, settles it."""
    host = urlsplit(server.url).netloc if isinstance(server, HttpServer) else ""
    access = server.oauth if isinstance(server, HttpServer) else None
    whose = f" as {render_visible_line(needs.requester)}" if needs.requester else ""
    query = f"?requester={quote(needs.requester, safe='')}" if needs.requester else ""
    reason, command = truncate(needs.reason, 500), format_login_command(server.name, needs.requester)
    return QuestionInput(
        id=_question_id(server.name, needs.occasion),
        text=f"Log in to the MCP server {server.name} ({host}){whose}: {reason}. Or: {command}",
        options=(REFUSE,),
        approvers=access.approvers if access else (),
        person=needs.requester,
        link=f"v1/mcp/{quote(server.name)}/login{query}" if access and access.is_at_gateway else "",
    )


async def settle_login(client: Client, store: GrantStore, grant: Grant) -> None:
    """Let the runs go on that wait for this login. Raises RPCError, OSError."""
    occasion = await store.name_occasion(grant.generation - 1, grant.requester)
    await settle_question(client, _question_id(grant.server, occasion), LOGGED_IN, grant.by)


def _question_id(server: str, occasion: str) -> str:
    return f"login:{server}:{occasion}"

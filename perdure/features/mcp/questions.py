"""The question "log in to this server": one for all runs that need it, and for each time that a login is over."""

from urllib.parse import quote, urlsplit

from temporalio.client import Client

from perdure.decisions.text.formatting import truncate
from perdure.features.mcp.activities.config import HttpServer, McpServer
from perdure.features.mcp.activities.grants import Grant, GrantStore, NeedsLoginError
from perdure.features.project_questions.client import settle_question
from perdure.features.project_questions.contract import QuestionInput

LOGGED_IN, REFUSE = "logged in", "refuse"


def login_question(server: McpServer, needs: NeedsLoginError) -> QuestionInput:
    """Return the question. A login at the gateway, or by `perdure mcp login`, settles it."""
    host = urlsplit(server.url).netloc if isinstance(server, HttpServer) else ""
    approvers = server.oauth.approvers if isinstance(server, HttpServer) and server.oauth else ()
    reason = truncate(needs.reason, 500)
    return QuestionInput(
        id=_question_id(server.name, needs.occasion),
        text=f"Log in to the MCP server {server.name} ({host}): {reason}. Or: perdure mcp login {server.name}",
        options=(REFUSE,),
        approvers=approvers,
        link=f"v1/mcp/{quote(server.name)}/login" if approvers else "",
    )


async def settle_login(client: Client, store: GrantStore, grant: Grant) -> None:
    """Let the runs go on that wait for this login. Raises RPCError, OSError."""
    occasion = await store.name_occasion(grant.generation - 1)
    await settle_question(client, _question_id(grant.server, occasion), LOGGED_IN, grant.by)


def _question_id(server: str, occasion: str) -> str:
    return f"login:{server}:{occasion}"

"""A remote MCP server, and the authorization server of its tokens, over HTTP on loopback.

Tokens rotate: a refresh token that comes twice revokes its whole family, as OAuth 2.1 recommends.
"""

import asyncio
import base64
import hashlib
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, urlencode

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

SCOPE = "stock"


@dataclass
class Family:
    """The tokens of one login."""

    scope: str
    resource: str
    access: str = ""
    ends_at: float = 0.0
    refresh: str = ""
    spent: set[str] = field(default_factory=set)
    is_revoked: bool = False


@dataclass(frozen=True)
class SeenCall:
    """A call, or a request about a task, as it came: its arguments, the login that its token is of, and the session."""

    arguments: dict[str, Any]
    family: Family
    session: str


@dataclass
class OAuthServer:
    """`ttl`: seconds of an access token. `token_status`: what the token endpoint answers instead, if it is down.

    The tool `meet` is answered once two calls of it are there. `has_sessions`: it speaks MCP of 2025, with sessions.
    """

    ttl: float = 3600.0
    token_status: int = 0
    refusal: str = ""
    sends_issuer: bool = True
    families: list[Family] = field(default_factory=list)
    codes: dict[str, tuple[Family, dict[str, str]]] = field(default_factory=dict)
    clients: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    has_sessions: bool = False
    seen: list[SeenCall] = field(default_factory=list)
    met: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        mcp = MCPServer("tickets")
        mcp.add_tool(_stock, "stock", None, "How many are there.", ToolAnnotations(read_only_hint=True))
        mcp.add_tool(_wipe, "wipe", None, "Delete all.", ToolAnnotations(read_only_hint=True))
        mcp.add_tool(self._meet, "meet", None, "Count with another.", ToolAnnotations(read_only_hint=True))
        self._inner = mcp.streamable_http_app(stateless_http=not self.has_sessions)
        config = uvicorn.Config(self._app, host="127.0.0.1", port=0, log_level="critical", interface="asgi3")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    def revoke(self) -> None:
        for family in self.families:
            family.is_revoked = True

    def count(self, word: str) -> int:
        return self.log.count(word)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        request = Request(scope, receive)
        routes = {
            "/.well-known/oauth-protected-resource/mcp": self._resource,
            "/.well-known/oauth-authorization-server": self._metadata,
            "/register": self._register,
            "/authorize": self._authorize,
            "/token": self._token,
        }
        if (handler := routes.get(scope["path"])) is not None:
            await (await handler(request))(scope, receive, send)
            return
        body = await request.body()
        if (refusal := self._refusal_of(request, body)) is not None:
            await refusal(scope, receive, send)
            return
        if self.has_sessions and b'"server/discover"' in body:
            error = {"code": -32601, "message": "Method not found"}
            refused = JSONResponse({"jsonrpc": "2.0", "id": json.loads(body)["id"], "error": error})
            await refused(scope, receive, send)
            return
        is_read = False

        async def again() -> Any:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._inner(scope, again, send)

    def _refusal_of(self, request: Request, body: bytes) -> Response | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        family = next((each for each in self.families if token and each.access == token), None)
        if family is not None and (b'"tools/call"' in body or b'"tasks/' in body):
            arguments = json.loads(body)["params"].get("arguments") or {}
            self.seen.append(SeenCall(arguments, family, request.headers.get("mcp-session-id", "")))
        if family is None or family.is_revoked or family.ends_at < time.time():
            hint = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            return Response(status_code=401, headers={"WWW-Authenticate": hint})
        if b'"wipe"' in body and "admin" not in family.scope.split():
            hint = 'Bearer error="insufficient_scope", scope="admin"'
            return Response(status_code=403, headers={"WWW-Authenticate": hint})
        return None

    async def _resource(self, _: Request) -> Response:
        found = {"resource": f"{self.url}/mcp", "authorization_servers": [self.url], "scopes_supported": [SCOPE]}
        return JSONResponse(found)

    async def _metadata(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": self.sends_issuer,
            }
        )

    async def _register(self, request: Request) -> Response:
        asked = await request.json()
        client, secret = secrets.token_hex(8), secrets.token_hex(16)
        self.clients[client] = secret
        self.log.append("register")
        return JSONResponse({**asked, "client_id": client, "client_secret": secret}, 201)

    async def _authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_hex(16)
        family = Family(scope=query.get("scope", ""), resource=query["resource"])
        self.codes[code] = (family, query)
        back = {"code": code, "state": query["state"]} | ({"iss": self.url} if self.sends_issuer else {})
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(back)}", 302)

    async def _token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        self.forms.append(form)
        if self.token_status:
            return Response(status_code=self.token_status)
        if self.refusal:
            return JSONResponse({"error": self.refusal}, 400)
        if self.clients.get(form["client_id"]) != form.get("client_secret"):
            return JSONResponse({"error": "invalid_client"}, 401)
        answer = {
            "authorization_code": self._exchange,
            "refresh_token": self._refresh,
            "client_credentials": self._machine,
        }[form["grant_type"]](form)
        if answer is None:
            return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse(self._mint(answer))

    def _exchange(self, form: dict[str, str]) -> Family | None:
        if form["code"] not in self.codes:
            return None
        family, query = self.codes.pop(form["code"])
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != query["code_challenge"]:
            return None
        self.log.append("login")
        self.families.append(family)
        return family

    def _refresh(self, form: dict[str, str]) -> Family | None:
        token = form["refresh_token"]
        for family in self.families:
            if token in family.spent:
                family.is_revoked = True
                self.log.append("reused")
            if token == family.refresh and not family.is_revoked and form["resource"] == family.resource:
                family.spent.add(token)
                self.log.append("refresh")
                return family
        return None

    async def _meet(self, article: str) -> str:
        self.met.append(article)
        while len(self.met) < 2:  # noqa: ASYNC110 - the test reads the list, too
            await asyncio.sleep(0.01)
        return _stock(article)

    def _machine(self, form: dict[str, str]) -> Family:
        self.log.append("machine")
        self.families.append(family := Family(scope=form.get("scope", ""), resource=form["resource"]))
        return family

    def _mint(self, family: Family) -> dict[str, Any]:
        family.access, family.refresh = f"at-{secrets.token_hex(16)}", f"rt-{secrets.token_hex(16)}"
        family.ends_at = time.time() + self.ttl
        return {
            "access_token": family.access,
            "token_type": "bearer",
            "expires_in": int(self.ttl),
            "refresh_token": family.refresh,
            "scope": family.scope,
        }


def _stock(article: str) -> str:
    return json.dumps({"article": article, "pieces": 3})


def _wipe() -> str:
    return "wiped"

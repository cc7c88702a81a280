/** The page: sign in, the menu, and the screen that the address names. */

import {
  html,
  onSignedOut,
  placeOf,
  render,
  request,
  useAction,
  useEffect,
  useLook,
  useMemo,
  usePlace,
  useRef,
  useState,
} from "./base.js";
import { ConversationScreen } from "./chat.js";
import { AgentsScreen, ConversationsScreen, FeatureScreen, RunsScreen } from "./lists.js";
import { NowScreen, overviewPath } from "./now.js";
import { Failure, focus } from "./parts.js";
import { RunScreen } from "./run.js";
import { StartScreen } from "./start.js";

const MENU = {
  now: "Now",
  runs: "Runs",
  conversations: "Conversations",
  start: "Start",
  agents: "Agents",
  "follow-ups": "More",
};
const MORE = ["follow-ups", "schedules", "mailboxes", "dead-letters"];

function App() {
  const [session, setSession] = useState(/** @type {any} */ (undefined)); // null: nobody is signed in
  useEffect(() => {
    const end = (/** @type {any} */ before) =>
      before?.name || before?.isOver ? { isOver: true } : null;
    return onSignedOut(() => setSession(end));
  }, []);
  useEffect(() => {
    request("v1/session").then(setSession, (error) =>
      setSession(error.status === 401 ? null : { failure: error.message }),
    );
  }, []);
  if (session === undefined) return html`<main><p class="quiet">…</p></main>`;
  if (session === null || session.isOver)
    return html`<${SignIn} onSession=${setSession} isOver=${session?.isOver} />`;
  if (session.failure) return html`<main><${Failure} text=${session.failure} /></main>`;
  return html`<${Shell} session=${session} leave=${() => setSession(null)} />`;
}

/** @param {{ onSession: (session: any) => void, isOver?: boolean }} props */
function SignIn({ onSession, isOver = false }) {
  const [token, setToken] = useState("");
  const { busy, error, act } = useAction();
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    act(async () => onSession(await request("v1/session", { body: { token: token.trim() } })));
  };
  return html`<main class="sign-in">
    <h1>Perdure</h1>
    <p role="status">${isOver && "The session is over: sign in again."}</p>
    <form onSubmit=${submit}>
      <label for="token">Token</label>
      <input id="token" type="password" autocomplete="off" spellcheck="false" placeholder="pdr_…" required ref=${focus} value=${token} onInput=${(/** @type {any} */ it) => setToken(it.target.value)} />
      <button class="first" disabled=${busy || !token.trim()}>Sign in</button>
      <${Failure} text=${error} />
    </form>
    <p class="quiet">Make one: <code>perdure token create NAME --scope runs:read --scope human:answer</code></p>
  </main>`;
}

/** @param {{ session: any, leave: () => void }} props */
function Shell({ session, leave }) {
  const { screen, id, tab, query } = usePlace();
  const { value: agents } = useLook("v1/agents", { once: true });
  const [path] = useState(overviewPath);
  const { value: overview } = useLook(path, { once: true });
  const tools = useMemo(() => toolsOf(agents), [agents]);
  const can = (/** @type {string} */ scope) => session.scopes.includes(scope);
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${id || MENU[/** @type {"now"} */ (screen)] || screen} · Perdure`;
    if (!isFirst.current) main.current?.focus(); // a screen reader reads the new screen
    isFirst.current = false;
  }, [screen, id]);
  const signOut = () => request("v1/session", { method: "DELETE" }).finally(leave);
  const current = MORE.includes(screen)
    ? "follow-ups"
    : screen === "conversation"
      ? "conversations"
      : screen === "run"
        ? "runs"
        : screen;
  const shared = { can, tools, agents, overview, query, webUi: overview?.web_ui ?? null };
  return html`<header class="top">
      <h1><a href=${placeOf("now")}>Perdure</a></h1>
      <nav aria-label="screens">
        ${Object.entries(MENU).map(([name, title]) => html`<a href=${placeOf(name)} aria-current=${name === current ? "page" : undefined}>${title}</a>`)}
      </nav>
      <span class="who">${session.name} <button type="button" class="plain" onClick=${signOut}>Sign out</button></span>
    </header>
    <main ref=${main} tabindex="-1">${screenOf(screen, id, tab, shared)}</main>`;
}

/** @param {string} screen @param {string} id @param {string} tab @param {any} shared */
function screenOf(screen, id, tab, shared) {
  const namespace = shared.overview?.namespace ?? "default";
  if (screen === "run")
    return html`<${RunScreen} key=${id} id=${id} tab=${tab} namespace=${namespace} ...${shared} />`;
  if (screen === "runs") return html`<${RunsScreen} ...${shared} />`;
  if (screen === "conversations") return html`<${ConversationsScreen} />`;
  if (screen === "conversation")
    return html`<${ConversationScreen} key=${id} id=${id} ...${shared} />`;
  if (screen === "start") return html`<${StartScreen} ...${shared} />`;
  if (screen === "agents") return html`<${AgentsScreen} ...${shared} />`;
  if (MORE.includes(screen)) return html`<${FeatureScreen} key=${screen} name=${screen} />`;
  return html`<${NowScreen} ...${shared} />`;
}

/** All tools by name, for the forms of their arguments. @param {any} agents @returns {Map<string, any>} */
function toolsOf(agents) {
  const all = (agents?.agents ?? []).flatMap((/** @type {any} */ agent) => agent.tools);
  return new Map(all.map((/** @type {any} */ tool) => [tool.name, tool]));
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));

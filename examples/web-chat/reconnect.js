// Goes on with a chat that broke off: after an error, after an early end, and after a reload. The SDK does none of it.
import { useEffect, useState } from "react";

const isOpen = (message) => message && (message.role === "user" || message.metadata?.status === "running");
const isRefused = (error) => /"status":\s*4(?!08|29)\d\d/.test(error?.message); // to try again would change nothing
const isUnsent = (message) => // a person decided, and nothing came back
  message?.metadata?.status === "waiting_on_human" && message.parts.some((part) => part.state === "approval-responded");

export function useReconnect(chat, { status, error, messages }, api) {
  const [tries, setTries] = useState(0);
  const last = messages.at(-1);
  const isUnfinished = tries === 0 || isOpen(last) || (status === "error" && isUnsent(last));
  const isBroken = ["ready", "error"].includes(status) && !isRefused(error) && isUnfinished;
  const goOn = async () => {
    if (status === "error" && isUnsent(last)) return chat.sendMessage(); // the same decision: it counts once
    const answer = await fetch(`${api}/${encodeURIComponent(chat.id)}/messages`);
    const kept = answer.ok && (await answer.json()).messages;
    if (!kept || !["ready", "error"].includes(chat.status)) return; // later, or a person was quicker
    if (last && !kept.some(({ id }) => id === last.id)) return chat.regenerate(); // the message never arrived
    chat.messages = kept;
    if (isOpen(kept.at(-1))) await chat.resumeStream();
  };
  useEffect(() => {
    if (!isBroken) return setTries((now) => Math.min(now, 1));
    const again = () => goOn().catch(() => {}).then(() => setTries(tries + 1));
    const timer = setTimeout(again, tries && 250 * 2 ** Math.min(tries, 6));
    return () => clearTimeout(timer);
  }, [isBroken, tries]);
  return goOn; // also for a page that has answered a question
}

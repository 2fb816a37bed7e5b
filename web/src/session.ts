/** The session of the reader. */

import { signal } from "@preact/signals";
import { setSessionEndListener } from "./api/client";
import { getSession, logOut, type Session } from "./api/kas";

export type SessionState =
  | { state: "loading" }
  | { state: "open"; session: Session }
  /** Nobody is logged in. `ended`: somebody was, until now. */
  | { state: "none"; ended: boolean }
  | { state: "failed"; error: unknown };

export const session = signal<SessionState>({ state: "loading" });

export function startSession(): void {
  setSessionEndListener(setNone);
  void loadSession();
  // Another tab may have logged in as somebody else, or out.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) void loadSession();
  });
}

export async function loadSession(): Promise<void> {
  try {
    const loaded = await getSession();
    const last = session.value;
    if (loaded === null) setNone();
    // The page shows data of another caller.
    else if (last.state === "open" && last.session.caller !== loaded.caller) window.location.reload();
    else session.value = { state: "open", session: loaded };
  } catch (error) {
    if (session.value.state !== "open") session.value = { state: "failed", error };
  }
}

export async function endSession(): Promise<void> {
  try {
    await logOut();
    session.value = { state: "none", ended: false };
  } catch (error) {
    session.value = { state: "failed", error };
  }
}

function setNone(): void {
  if (session.value.state !== "none")
    session.value = { state: "none", ended: session.value.state === "open" };
}

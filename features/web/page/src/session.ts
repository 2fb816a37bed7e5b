/** The session of the reader. */

import { signal } from "@preact/signals";
import { RequestFailure, setReader, setSessionEndListener } from "./api/client";
import { getSession, logOut, type Session } from "./api/kas";

export type SessionState =
  | { state: "loading" }
  | { state: "open"; session: Session }
  /** Nobody is logged in. `ended`: somebody was, until now. */
  | { state: "none"; ended: boolean }
  /** The page was loaded for `last`, and another tab has logged in as `caller`. */
  | { state: "other"; caller: string; last: string }
  | { state: "failed"; error: unknown };

export const session = signal<SessionState>({ state: "loading" });

export function startSession(): void {
  setSessionEndListener(() => void loadSession());
  void loadSession();
  // Another tab may have logged in as somebody else, or out.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) void loadSession();
  });
}

export async function loadSession(): Promise<void> {
  try {
    const loaded = await getSession();
    const known = session.value;
    const last =
      known.state === "open" ? known.session.caller : known.state === "other" ? known.last : loaded?.caller;
    if (loaded === null) setNone();
    // The page shows data of another caller.
    else if (last !== undefined && last !== loaded.caller)
      session.value = { state: "other", caller: loaded.caller, last };
    else {
      setReader(loaded.caller);
      session.value = { state: "open", session: loaded };
    }
  } catch (error) {
    if (session.value.state !== "open") session.value = { state: "failed", error };
  }
}

export async function endSession(): Promise<void> {
  try {
    await logOut();
    setReader(null);
    session.value = { state: "none", ended: false };
  } catch (error) {
    // The page finds out itself why it has no session.
    if (!(error instanceof RequestFailure && error.status === 401))
      session.value = { state: "failed", error };
  }
}

function setNone(): void {
  setReader(null);
  if (session.value.state !== "none")
    session.value = { state: "none", ended: session.value.state === "open" };
}

import { useEffect, useState } from "preact/hooks";
import { getIssuers, logIn, loginAddress } from "../../api/kas";
import { loadSession, session } from "../../session";
import { Failure, Notice } from "../../ui/notice";
import "./login.css";

export function LoginPage({ ended }: { ended: boolean }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isSending, setSending] = useState(false);
  const [issuers, setIssuers] = useState<string[]>([]);
  useEffect(() => {
    // Without the list, people can log in with a token.
    void getIssuers().then(setIssuers, () => undefined);
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setSending(true);
    setError(null);
    try {
      await logIn(token);
      setToken("");
      await loadSession();
      if (session.value.state === "none") {
        setError(
          new Error(
            "kas has accepted the token, and the next request came without the session: the browser keeps no cookies of kas",
          ),
        );
      }
    } catch (failure) {
      setError(failure);
    }
    setSending(false);
  };
  return (
    <main class="login stack">
      <h1>Log in to kas</h1>
      {ended && <Notice kind="warning">The session has ended, or its token was revoked.</Notice>}
      <form class="stack" onSubmit={(event) => void submit(event)}>
        {/* Programs that keep passwords ask for a name. */}
        <input type="text" name="username" autocomplete="username" value="kas" readOnly hidden />
        <label class="stack" for="token">
          Token of a caller
          <input
            id="token"
            type="password"
            autocomplete="current-password"
            required
            value={token}
            onInput={(event) => {
              setToken(event.currentTarget.value);
            }}
          />
        </label>
        <button class="primary" type="submit" disabled={isSending}>
          Log in
        </button>
      </form>
      {issuers.map((issuer) => (
        // The router of the page leaves links with a target to the browser.
        <a key={issuer} class="button" target="_self" href={loginAddress(issuer)}>
          Log in with {issuer}
        </a>
      ))}
      {error !== null && <Failure what="The login failed" error={error} />}
      <p class="small muted">
        The operator of kas creates a token with <code>kas token new caller</code>. A token of an OIDC issuer
        that kas accepts works, too. The page shows what the token may see, and nothing else.
      </p>
    </main>
  );
}

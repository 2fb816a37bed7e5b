import { useEffect } from "preact/hooks";
import { path } from "./router";
import { endSession, session } from "./session";
import { Boundary } from "./ui/boundary";
import { Lazy } from "./ui/lazy";
import { Failure, Notice } from "./ui/notice";
import { ShortcutHelp } from "./ui/shortcuts";
import { AgentPage } from "./pages/agent/agent";
import { AgentsPage } from "./pages/agents/agents";
import { AttentionPage } from "./pages/attention/attention";
import { EnvironmentPage } from "./pages/environment/environment";
import { EnvironmentsPage } from "./pages/environments/environments";
import { LoginPage } from "./pages/login/login";
import { MissingPage } from "./pages/missing/missing";
import { RoutingPage } from "./pages/routing/routing";
import { plain } from "./text";

/** The pages, with the first parts of their paths. */
const NAVIGATION: readonly { address: string; name: string; parts: readonly (string | undefined)[] }[] = [
  { address: "/", name: "Attention", parts: [undefined] },
  { address: "/environments", name: "Environments", parts: ["environments", "e"] },
  { address: "/agents", name: "Agents", parts: ["agents"] },
  { address: "/routing", name: "Routing", parts: ["routing"] },
  { address: "/audit", name: "Audit", parts: ["audit"] },
];

export function App() {
  const current = session.value;
  switch (current.state) {
    case "loading":
      return <p class="hidden-text">Loading</p>;
    case "failed":
      return (
        <main class="stack">
          <h1>kas</h1>
          <Failure what="The page cannot be shown" error={current.error} />
        </main>
      );
    case "other":
      return (
        <main class="stack">
          <h1>kas</h1>
          <Notice kind="warning">
            This page was loaded for the caller {plain(current.last, 128)}, and this browser has logged in as{" "}
            {plain(current.caller, 128)} since then.
          </Notice>
          <div>
            <button
              type="button"
              onClick={() => {
                window.location.reload();
              }}
            >
              Continue as {plain(current.caller, 128)}
            </button>
          </div>
        </main>
      );
    case "none":
      return <LoginPage ended={current.ended} />;
    case "open":
      return (
        <>
          <a class="skip" href="#main">
            Skip to the content
          </a>
          <header class="bar">
            <a class="brand" href="/">
              kas
            </a>
            <nav aria-label="Pages">
              {NAVIGATION.map(({ address, name, parts }) => (
                <a
                  key={address}
                  href={address}
                  aria-current={parts.includes(path.value[0]) ? "page" : undefined}
                >
                  {name}
                </a>
              ))}
            </nav>
            <ShortcutHelp />
            <span class="small muted">{plain(current.session.caller, 128)}</span>
            <button type="button" onClick={() => void endSession()}>
              Log out
            </button>
          </header>
          <main id="main" tabIndex={-1}>
            <Boundary key={path.value.join("/")} what="This page cannot be shown">
              <Page />
            </Boundary>
          </main>
        </>
      );
  }
}

/** The first load does not need it. */
const loadAudit = () => import("./pages/audit/audit").then((module) => module.AuditPage);

function Page() {
  const [first, second, third, ...more] = path.value;
  const title = [third, second ?? first ?? "Attention", "kas"].filter(Boolean).join(" · ");
  useEffect(() => {
    document.title = plain(title, 200);
  }, [title]);
  if (more.length > 0) return <MissingPage />;
  if (first === "e" && second !== undefined && third !== undefined)
    return <EnvironmentPage project={second} slug={third} />;
  if (third !== undefined) return <MissingPage />;
  if (first === undefined) return <AttentionPage />;
  if (first === "agents")
    return second === undefined ? <AgentsPage /> : <AgentPage key={second} agent={second} />;
  if (first === "environments" && second === undefined) return <EnvironmentsPage />;
  if (first === "routing" && second === undefined) return <RoutingPage />;
  if (first === "audit" && second === undefined) return <Lazy name="audit" load={loadAudit} props={{}} />;
  return <MissingPage />;
}

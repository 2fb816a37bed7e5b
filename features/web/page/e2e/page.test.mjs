/** The page in a browser, with kas, agentk and the cluster of KUBECONFIG: what it shows, and what a reader changes with it. */

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { createServer } from "node:http";
import { describe, it } from "node:test";
import { demo, open, podOf, tree, uidOf } from "./fixture.mjs";
import { Replicas } from "./replicas.mjs";
import { checkAccess, hasFocus, SCREENSHOTS, showOnly } from "./tab.mjs";

it("the worst objects come first, and an object that is opened elsewhere is in view", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const demoSection = page.getByRole("region", { name: "demo" });
  const crashed = demoSection.getByRole("row", { name: /Pod\/crash/ }).filter({ hasText: demo.namespace });
  await crashed.getByText(/crashed .*with exit code 1/).waitFor();
  await crashed.getByRole("link").click();
  const current = page.locator('[role="row"][aria-selected="true"]');
  await current.filter({ hasText: /^Pod crash/ }).waitFor();
  const { top, bottom } = await current.evaluate((row) => row.getBoundingClientRect().toJSON());
  const box = await page.getByRole("treegrid").evaluate((tree) => tree.getBoundingClientRect().toJSON());
  assert.ok(
    top >= box.top && bottom <= box.bottom,
    `${top} to ${bottom} is not in ${box.top} to ${box.bottom}`,
  );
  await page.keyboard.press("Escape");
  await hasFocus(page, /^Pod crash/);
  await page.goto(tree());
  const first = page.locator('.tree-body [role="row"]').first();
  await first.filter({ hasText: /^Deployment crash/ }).waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}worst-first.png` });
  // An object that the tree folds away, within others.
  const folded = uidOf("configmap/kube-root-ca.crt");
  await page.goto(`${demo.address}/agents/demo?o=${folded}`);
  await current.filter({ hasText: /^ConfigMap kube-root-ca/ }).waitFor();
  await close();
});

it("a reader is offered what the services of the caller allow", async () => {
  const token = await demo.addCaller("graph-only", ["graph"]);
  const { page, logIn, close } = await open();
  await logIn(token);
  await page.goto(tree(`&o=${uidOf("deployment/web")}`));
  await page
    .getByRole("region", { name: "Object" })
    .getByText("Reason")
    .or(page.getByText("UID"))
    .first()
    .waitFor();
  const views = page.getByRole("navigation", { name: "Views" }).getByRole("button");
  assert.deepEqual(await views.allTextContents(), ["Tree", "List", "Map", "Components", "About"]);
  assert.deepEqual(await page.getByRole("tab").allTextContents(), ["Summary"]);
  assert.equal(await page.getByRole("alert").count(), 0);
  await page.screenshot({ path: `${SCREENSHOTS}graph-only.png` });
  await page.goto(tree("&view=metrics"));
  await page.getByRole("alert").first().waitFor();
  await close(/status of 403/);
});

it("a seventh tab without TLS loads, and says for what it waits", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const tabs = [page];
  while (tabs.length < 7) {
    const tab = await page.context().newPage();
    await tab.goto(demo.address);
    await tab.getByRole("heading", { name: "What needs attention" }).waitFor();
    tabs.push(tab);
  }
  const seventh = tabs.at(-1);
  await seventh.getByText("This tab waits until another one is closed").waitFor();
  await seventh.screenshot({ path: `${SCREENSHOTS}seventh-tab.png` });
  for (const tab of tabs.slice(0, -1)) await tab.close();
  await seventh.getByRole("heading", { name: "demo" }).waitFor();
  await seventh.getByText("This tab waits").waitFor({ state: "detached" });
  await close();
});

it("a change of the cluster appears without a reload", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree("&q=Deployment"));
  const web = page.getByRole("row", { name: /Deployment web/ });
  await web.getByText("2/2").first().waitFor();
  demo.kubectl(["scale", "deployment/web", "--replicas=1"]);
  await web.getByText("1/1").first().waitFor();
  demo.kubectl(["scale", "deployment/web", "--replicas=2"]);
  await web.getByText("2/2").first().waitFor();
  await close();
});

it("an environment shows the objects of its namespace with its labels", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.getByRole("region", { name: "Environments" }).getByRole("link", { name: "broken" }).waitFor();
  await page.getByRole("link", { name: "Environments" }).first().click();
  const rows = page.getByRole("region", { name: "shop" }).getByRole("row");
  await rows.filter({ hasText: "live" }).locator(".health.healthy").waitFor();
  await rows
    .filter({ hasText: "broken" })
    .filter({ hasText: /Pod.crash/ })
    .waitFor();
  await page.getByRole("link", { name: "broken" }).click();
  await page.getByRole("heading", { name: "shop/web broken" }).waitFor();
  await page.getByRole("row", { name: /Deployment crash/ }).waitFor();
  assert.equal(await page.getByRole("row", { name: /Deployment web/ }).count(), 0);
  assert.equal(new URL(page.url()).pathname, "/e/shop%2Fweb/broken");
  await page.goto(`${demo.address}/e/shop%2Fweb/none`);
  await page.getByText("There is no such environment").waitFor();
  await close();
});

it("the map shows the way of a request, and says what it leaves out", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree("&view=map"));
  const map = page.getByRole("region", { name: "Map" });
  await map.getByRole("region", { name: "Services" }).getByRole("link", { name: "web" }).hover();
  assert.equal(await map.locator("path.active").count(), 1, "the line from the Service to its Deployment");
  const pod = map.getByRole("region", { name: "Pods" }).getByRole("link", { name: /crash/ });
  await pod.focus();
  assert.ok((await map.locator("path.active").count()) > 0, "the lines of the object with the focus");
  await page.keyboard.press("Enter");
  await page
    .getByRole("region", { name: "Object" })
    .getByText(/^Pod\/crash/)
    .waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}map-object.png` });
  await page.keyboard.press("Escape");
  await hasFocus(page, /crash/);
  const service = (index) => ({
    ...{ uid: `${index}`, kind: "Service", version: "v1", namespace: "n", name: `service-${index}` },
    ...{ health: "healthy", sequence: index },
  });
  await showOnly(
    page,
    Array.from({ length: 160 }, (_, index) => service(index)),
  );
  await page.goto(`${demo.address}/agents/demo?view=map`);
  await page.getByText("Not shown: 10 Service.").waitFor();
  assert.equal(await map.getByRole("link").count(), 150);
  await close();
});

it("hostile texts of a cluster are shown as text", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree(`&o=${uidOf("deployment/web")}&tab=events`));
  const event = page.getByText("<img src=x onerror=alert(1)> javascript:alert(1) safe⟨U+202E⟩gpj.exe");
  await event.first().waitFor();
  await page.goto(tree(`&o=${podOf("web")}&tab=logs`));
  const log = page.getByLabel("Log", { exact: true });
  await log.getByText("line 0").waitFor();
  const text = await log.textContent();
  assert.match(text, /red <script>alert\(1\)<\/script> ⟨U\+001B⟩\]0;title⟨U\+0007⟩ ⟨U\+202E⟩end/);
  assert.ok(text.length < 32_768, "a line of 1 MiB is cut");
  assert.equal(await log.locator(".ansi-red").first().textContent(), "red");
  const links = await page.evaluate(() => [...document.links].map(({ protocol }) => protocol));
  assert.deepEqual([...new Set(links)], ["http:"], "links of the page itself");
  assert.equal(await page.locator("#app img, #app script, #app iframe").count(), 0);
  await close();
});

it("a reader scales, restarts, pauses and rolls back, and deletes a pod", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const image = (name) => demo.kubectl(["get", "deployment/acts", `--output=jsonpath={${name}}`]);
  demo.kubectl(["create", "deployment", "acts", "--image=busybox:1.35", "--", "sleep", "1000"]);
  await page.goto(tree(`&o=${uidOf("deployment/acts")}`));
  const act = async (name, fill = async () => {}) => {
    await page.getByRole("button", { name, exact: true }).click();
    const dialog = page.getByRole("dialog", { name: new RegExp(`^${name}`) });
    await dialog.waitFor();
    await fill(dialog);
    await page.screenshot({ path: `${SCREENSHOTS}action-${name}.png` });
    await dialog.getByRole("button", { name, exact: true }).click();
    await page.getByText(`${name}: the API server has accepted it.`).waitFor();
  };
  await act("Scale", (dialog) => dialog.getByLabel("Replicas").fill("0"));
  assert.equal(image(".spec.replicas"), "0");
  await act("Restart");
  assert.match(image(".spec.template.metadata.annotations"), /restartedAt/);
  await act("Pause");
  assert.equal(image(".spec.paused"), "true");
  await act("Resume");
  assert.notEqual(image(".spec.paused"), "true");

  // A revision of before, which has no pods now.
  demo.kubectl(["set", "image", "deployment/acts", "busybox=busybox:none"]);
  const old = () =>
    JSON.parse(demo.kubectl(["get", "replicasets", "--selector=app=acts", "--output=json"])).items.find(
      ({ spec }) => spec.template.spec.containers[0].image === "busybox:1.35",
    );
  await page.goto(tree(`&o=${old().metadata.uid}`));
  await act("Roll back");
  assert.equal(image(".spec.template.spec.containers[0].image"), "busybox:1.35");

  const pod = podOf("web");
  await page.goto(tree(`&o=${pod}`));
  await act("Delete");
  await page.getByText("This object was deleted").waitFor();
  // An Escape closes the dialog alone.
  await page.goto(tree(`&o=${uidOf("deployment/acts")}`));
  await page.getByRole("button", { name: "Scale" }).click();
  await page.getByRole("dialog").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("region", { name: "Object" }).waitFor();
  await close();
});

it("an object that was replaced is not changed, and a caller without the right gets no button", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const { namespace } = demo;
  const node = { uid: "other", kind: "Deployment", group: "apps", version: "v1", namespace, name: "web" };
  await showOnly(page, [{ ...node, health: "healthy", sequence: 1, ready: { ready: 2, desired: 2 } }]);
  await page.goto(tree("&o=other"));
  const version = () => demo.kubectl(["get", "deployment/web", "--output=jsonpath={.metadata.generation}"]);
  const before = version();
  for (const name of ["Restart", "Scale", "Pause"]) {
    await page.getByRole("button", { name }).click();
    await page.getByRole("dialog").getByRole("button", { name }).click();
    await page
      .getByRole("dialog")
      .getByText(
        /The request was refused: .*(metadata.uid: Invalid value: "other"|UID in precondition: other)/,
      )
      .waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  }
  assert.equal(version(), before);
  await page.route(/selfsubjectaccessreviews/, async (route) => {
    const response = await route.fetch();
    const review = await response.json();
    await route.fulfill({ response, json: { ...review, status: { allowed: false } } });
  });
  await page.goto(tree("&o=other"));
  await page.getByText("This caller may not change it.").waitFor();
  assert.equal(await page.getByRole("button", { name: "Restart" }).count(), 0);
  await close(/status of (409|422)/);
});

it("events of a namespace are searched, and lead to their objects", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree("&view=events"));
  await page.getByRole("cell", { name: "ScalingReplicaSet" }).first().waitFor();
  await page.getByRole("button", { name: "Warnings" }).click();
  await page.getByRole("cell", { name: "ScalingReplicaSet" }).first().waitFor({ state: "detached" });
  await page.getByLabel("Search reasons, messages and objects").fill("hostile");
  await page.getByText("<img src=x onerror=alert(1)> javascript:alert(1) safe⟨U+202E⟩gpj.exe").waitFor();
  await page.getByRole("link", { name: "Deployment/web" }).click();
  await page.getByRole("region", { name: "Object" }).getByText("Deployment/web").waitFor();
  await close();
});

it("the audit log of the cluster names the job, the commit and the merge request, and is filtered", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const asked = await serveAuditLog(page);
  await page.goto(tree("&view=audit"));
  const row = page.getByRole("row", { name: /alice/ });
  await row.getByText("delete configmaps shop/settings").waitFor();
  assert.equal(
    await row.getByRole("link", { name: "!12" }).getAttribute("href"),
    `${GITLAB}/merge_requests/12`,
  );
  // A link of another scheme stays text.
  await row.getByText("commit 3f1c9a7e by Bob").waitFor();
  assert.equal(await row.getByRole("link", { name: /commit/ }).count(), 0);
  await page.getByRole("row", { name: /manifests of shop\/web/ }).waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}audit-log.png` });
  await checkAccess(page, "audit-log");

  await page.getByLabel("Environment").fill("live");
  await page.getByLabel("Environment").press("Enter");
  await page.getByText("There is no such event.").waitFor();
  const { environment, namespace } = Object.fromEntries(asked.at(-1));
  assert.deepEqual({ environment, namespace }, { environment: "live", namespace: demo.namespace });
  await close();
});

it("the view of logs shows those of the workload that is selected", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree("&view=logs"));
  await page.getByLabel("Workload").selectOption({ label: "Deployment/web" });
  await page.getByText(/lines of 2 pods/).waitFor();
  await page.getByLabel("Log", { exact: true }).getByText("line 1").first().waitFor();
  await close();
});

it("the logs of the pods of a workload are one", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree(`&o=${uidOf("deployment/web")}&tab=logs`));
  await page.getByText(/lines of 2 pods/).waitFor();
  const log = page.getByLabel("Log", { exact: true });
  await log.getByText("line 3").nth(1).waitFor();
  const pods = await log.locator("span[title]").evaluateAll((spans) => spans.map((span) => span.title));
  assert.equal(new Set(pods.map((title) => title.split(" ")[0])).size, 2);
  const times = pods.map((title) => title.split(" ")[1]);
  assert.deepEqual(times, [...times].sort());
  await page.getByLabel("Show lines with this text").fill("line 3");
  await page.getByText("line 2", { exact: false }).first().waitFor({ state: "detached" });
  await close();
});

it("a commit, a change of somebody else and a mass deletion are seen and answered", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const map = (name, value) =>
    `---\n${JSON.stringify({ apiVersion: "v1", kind: "ConfigMap", metadata: { name }, data: { value } })}\n`;
  const names = ["one", "two", "three", "four", "five"];
  const manifests = (list, value) => ({
    "manifests/all.yaml": list.map((name) => map(name, value)).join(""),
  });
  demo.commit("Add five <b>maps</b>", manifests(names, "first"));
  await page.goto(`${demo.address}/agents/demo?view=changes`);
  await page.getByText("Add five <b>maps</b>").waitFor();
  await page.locator(".health.healthy", { hasText: "synced" }).first().waitFor();

  const press = async (name) => {
    await page.getByRole("button", { name, exact: true }).first().click();
    const dialog = page.getByRole("dialog");
    await dialog.getByRole("button", { name, exact: true }).click();
    await dialog.waitFor({ state: "detached" });
  };
  await press("Suspend");
  await page.locator(".health.suspended", { hasText: "suspended" }).first().waitFor();
  demo.kubectl(["patch", "configmap/one", "--type=merge", '--patch={"data":{"value":"changed"}}']);
  await page.getByRole("button", { name: "Compare with Git" }).click();
  const comparison = page.getByRole("region", { name: "Comparison with Git" });
  await comparison.getByText("is changed").waitFor();
  await comparison.getByText("− changed").waitFor();
  await comparison.getByText("+ first").waitFor();
  const one = demo.kubectl(["get", "configmap/one", "--output=jsonpath={.metadata.uid}"]);
  const compared = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/diff")) compared.push(request.url());
  });
  await page.goto(tree(`&o=${one}&tab=git`));
  const git = page.getByRole("tabpanel", { name: "Git" });
  await git.getByText("− changed").waitFor();
  await git.getByText("Add five <b>maps</b>").waitFor();
  assert.equal(compared.length, 1, "only the project of the object is compared");
  await page.screenshot({ path: `${SCREENSHOTS}object-git.png` });
  const failed = [{ error: { file: "b.yaml", message: "it is no YAML" } }, { end: { notes: [] } }];
  await page.route("**/diff", (route) =>
    route.fulfill({ body: failed.map((line) => JSON.stringify(line)).join("\n") }),
  );
  await page.reload();
  await git.getByText("it is no YAML").waitFor();
  assert.equal(await git.getByText("The object is as in Git").count(), 0);
  await page.unroute("**/diff");
  await page.goto(`${demo.address}/agents/demo?view=changes`);
  await page.getByRole("button", { name: "Compare with Git" }).click();
  await comparison.getByText("− changed").waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}changes-diff.png` });
  await checkAccess(page);
  // A link to another version compares it without a click, and says which one it is.
  const bodies = [];
  await page.route("**/diff", async (route) => {
    bodies.push(route.request().postDataJSON());
    await route.fulfill({ body: failed.map((line) => JSON.stringify(line)).join("\n") });
  });
  await page.goto(`${demo.address}/agents/demo?view=changes&project=demo&ref=tags/v1&directory=a`);
  await page.getByRole("heading", { name: "demo at tags/v1, directory a" }).waitFor();
  await comparison.getByText("it is no YAML").waitFor();
  assert.deepEqual(bodies, [{ ref: { tag: "v1" }, directory: "a" }]);
  await page.unroute("**/diff");
  await page.goto(`${demo.address}/agents/demo?view=changes`);
  await press("Resume");
  await page.locator(".health.healthy", { hasText: "synced" }).first().waitFor();

  demo.commit("Remove four maps", manifests(["one"], "first"));
  await page.getByText("4 objects would be deleted, and this waits for an approval.").waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}changes-held.png` });
  await press("Approve");
  await page.locator(".health.healthy", { hasText: "synced" }).first().waitFor();
  assert.equal(demo.kubectl(["get", "configmaps", "two", "--ignore-not-found"]), "");
  await close();
});

it("a commit that waits, a held plan and a lost inventory are seen, and their plans are approved", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const projects = waitingProjects(Date.now());
  const sent = await serveProjects(page, projects);
  await page.goto(`${demo.address}/agents/demo?view=changes`);
  const section = (name) => page.getByRole("region", { name, exact: true });
  const shop = section("shop");
  await shop.getByText(/it has the finalizer kubernetes.io\/pvc-protection, for 5m\d+s$/).waitFor();
  await shop.getByText("and 2 more").waitFor();
  await shop.getByText(/^\d+s ago$/).waitFor();

  const started = section("new");
  await started.getByText("3 in Git, 2 starting").waitFor();
  await started.getByText("1 applied, 2 unchanged").waitFor();
  await started.getByText("What starts (2)").waitFor();
  await started.getByText("Pod shop/web: it pulls images").waitFor();

  const blog = section("blog");
  await blog.getByText("1 object would be deleted, and this waits for an approval.").waitFor();
  await blog.getByText("Held for 5h, since the commit cccccccccccc").waitFor();
  await blog.getByText("Deletions that wait (1)").click();
  await blog.getByText(/^Namespace blog, and with it 12 objects, 2 of them of others <b>/).waitFor();

  const lost = section("lost");
  await lost.getByText("agentk does not know which objects belong to the project").waitFor();
  const press = async (part, name) => {
    await part.getByRole("button", { name, exact: true }).click();
    const dialog = page.getByRole("dialog");
    await dialog.waitFor();
    await page.screenshot({ path: `${SCREENSHOTS}changes-${name.toLowerCase().replace(" ", "-")}.png` });
    await dialog.getByRole("button", { name, exact: true }).click();
    await dialog.waitFor({ state: "detached" });
  };
  await press(lost, "Find objects");
  await lost
    .getByText("It has found 12 objects, 1 of them not in Git. This waits for an approval.")
    .waitFor();
  await lost.getByText("Service shop/old").waitFor();
  await lost.getByText("foos.example.com: forbidden (403)").waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}changes-plans.png`, fullPage: true });
  await checkAccess(page);
  // The plan is another one while the dialog is open: the command is about what the dialog has shown.
  await lost.getByRole("button", { name: "Recover", exact: true }).click();
  projects.lost.recovery = { ...projects.lost.recovery, code: "another", count: 13 };
  await lost.getByText("It has found 13 objects").waitFor();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("12 objects, 1 of them not in Git").waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}changes-recover.png` });
  await dialog.getByRole("button", { name: "Recover", exact: true }).click();
  await dialog.waitFor({ state: "detached" });
  await press(blog, "Approve");
  assert.deepEqual(sent, ["lost/recover", "lost/recover?code=5c1f", "blog/approve?code=0a1b"]);
  await section("new").locator(".health.unknown", { hasText: "of-the-future" }).waitFor();
  await close();
});

it("metrics of the namespace and a query of the reader are charts", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree("&view=metrics"));
  for (const [title, sign] of [
    ["CPU", /m$|cores$/],
    ["Memory", /MiB$/],
    ["Network, received and sent", /KiB\/s$/],
    ["Restarts in the last hour", /\d$/],
  ]) {
    const panel = page.getByRole("region", { name: title });
    await panel.getByText("db-0").waitFor();
    assert.match(await panel.getByRole("listitem").first().textContent(), sign, title);
    assert.equal(await panel.locator("canvas").count(), 1);
  }
  await page.getByLabel("PromQL").fill('up{job="containers"}');
  await page.getByRole("button", { name: "Run" }).click();
  await page
    .getByText(/up\{.*job="containers"/)
    .first()
    .waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}metrics.png`, fullPage: true });
  await checkAccess(page);
  await page.getByLabel("PromQL").fill("sum by (");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText("The query failed: ").getByText("parse error").waitFor();
  await close(/status of 400/);
});

it("a reader finds the path of a request that failed, and its line in the audit log", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(`${demo.address}/agents/nobody`);
  const link = page.getByRole("alert").getByRole("link").first();
  const id = await link.textContent();
  await link.click();
  const stops = page.getByRole("region", { name: "The path of a request" }).getByRole("listitem");
  await stops.filter({ hasText: "Ends here" }).waitFor();
  assert.deepEqual(await stops.count(), 3);
  await page.screenshot({ path: `${SCREENSHOTS}request-refused.png` });
  await page.goto(`${demo.address}/audit`);
  await page.getByRole("link", { name: id }).waitFor();
  await page.getByLabel("Result").selectOption("allow");
  await page.getByRole("link", { name: id }).waitFor({ state: "detached" });
  // The page has asked for the rights of its reader.
  await page.goto(tree(`&o=${uidOf("deployment/web")}`));
  await page.getByRole("button", { name: "Restart" }).waitFor();
  await page.goto(`${demo.address}/audit`);
  await page.locator("td").first().waitFor();
  const reviews = page.getByRole("row", { name: /selfsubjectaccessreviews.*allowed/ });
  assert.equal(await reviews.count(), 0);
  await page.getByRole("button", { name: "Access reviews" }).click();
  await reviews.first().waitFor();
  await page.goto(`${demo.address}/routing`);
  await page.getByLabel("Id of a request").fill("unknown-1");
  await page.keyboard.press("Enter");
  await page.getByText("No replica knows a request unknown-1").waitFor();
  await close(/status of 404/);
});

it("values of a Secret are loaded and shown when the reader says so", async () => {
  const { page, logIn, close } = await open();
  const received = [];
  page.on("response", async (response) => {
    if (response.url().includes("/secrets/keys")) received.push(await response.text().catch(() => ""));
  });
  await logIn();
  const { namespace } = demo;
  const node = {
    uid: "s",
    kind: "Secret",
    version: "v1",
    namespace,
    name: "keys",
    health: "healthy",
    sequence: 1,
  };
  await showOnly(page, [node]);
  await page.goto(tree("&o=s&tab=yaml"));
  await page.getByText("kind: Secret").waitFor();
  const secret = Buffer.from("hunter2-of-the-test").toString("base64");
  assert.ok(received.length > 0 && !received.join("").includes(secret), "the values are not even loaded");
  assert.ok(
    !(await page.content()).includes("hunter2"),
    "nor are those shown that kubectl keeps in an annotation",
  );
  await page.getByRole("button", { name: "Load the values" }).click();
  await page.getByRole("button", { name: "Show the value of password" }).waitFor();
  assert.ok(!(await page.content()).includes("hunter2"));
  await page.getByRole("button", { name: "Show the value of password" }).click();
  await page.getByText("hunter2-of-the-test").waitFor();
  await close();
});

it("another site can neither frame the page nor use its session", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const evil = createServer((_, response) => {
    response.setHeader("content-type", "text/html").end(`<iframe src="${demo.address}/"></iframe>`);
  });
  await new Promise((resolve) => evil.listen(0, "127.0.0.1", resolve));
  // The same site with another port, as that of proxied content.
  const attack = await page.context().newPage();
  await attack.goto(`http://localhost:${evil.address().port}/`);
  const [before] = await page.context().cookies(demo.address);
  const outcomes = await attack.evaluate(
    async ([address, token]) => {
      const outcomes = [];
      for (const init of [
        { method: "DELETE" },
        { headers: { "Kas-Web": "1" } },
        { method: "POST", mode: "no-cors", body: JSON.stringify({ token }) },
        { mode: "no-cors" },
      ]) {
        const sent = fetch(`${address}/web/v1/session`, { credentials: "include", ...init });
        outcomes.push(
          await sent.then(
            ({ status }) => status,
            () => "refused",
          ),
        );
      }
      return outcomes;
    },
    [demo.address, demo.token],
  );
  assert.deepEqual(outcomes, ["refused", "refused", "refused", "refused"]);
  // The other site does not see whether kas has executed the login, which would have been another session.
  assert.deepEqual(await page.context().cookies(demo.address), [before]);
  const framed = attack.frames().find((frame) => frame !== attack.mainFrame());
  assert.equal(await framed.locator("#app").count(), 0, "the page is not in the frame");
  evil.close();
  await page.reload();
  await page.getByRole("heading", { name: "What needs attention" }).waitFor();
  await close();
});

it("5,000 objects are few elements", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const pod = (index) => ({
    ...{ uid: `${index}`, kind: "Pod", version: "v1", namespace: "n", name: `pod-${index}` },
    ...{ health: "degraded", sequence: index },
  });
  await showOnly(
    page,
    Array.from({ length: 5000 }, (_, index) => pod(index + 10_000)),
  );
  await page.goto(`${demo.address}/agents/demo`);
  const rows = page.locator(".tree-body [role=row]");
  await rows.first().focus();
  await page.keyboard.press("End");
  await page.getByRole("row", { name: /pod-14999/ }).waitFor();
  await hasFocus(page, /pod-14999/);
  assert.ok((await rows.count()) < 80);
  assert.equal(await page.getByRole("treegrid").getAttribute("aria-rowcount"), "5001");
  await close();
});

it("an error in the configuration of an agent is shown", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  demo.configure("Break the configuration", "gitops: {manifest_projects: 7}\n");
  await page.goto(`${demo.address}/agents/demo?view=about`);
  await page.getByText(/The newest configuration is not in force, for .*manifest_projects/).waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}about-error.png` });
  demo.configure("Mend the configuration", "");
  await page.getByText(/The newest configuration is not in force/).waitFor({ state: "detached" });
  await close();
});

const PROVIDER = new URL("../../../../target/oidc-provider/server", import.meta.url).pathname;

it("a person logs in at an issuer", { skip: !existsSync(PROVIDER) && "make tools builds it" }, async () => {
  const { page, close } = await open();
  await page.goto(tree());
  await page.getByRole("link", { name: "Log in with demo-login" }).click();
  await page.locator("input[name=username]").fill("test-user@localhost");
  await page.locator("input[name=password]").fill("verysecure");
  await page.keyboard.press("Enter");
  await page.getByRole("row", { name: /Deployment web/ }).waitFor();
  assert.equal(page.url(), tree());
  await page.getByText("demo-login:id1").waitFor();
  const cookies = await page.context().cookies(demo.address);
  assert.deepEqual(
    cookies.map(({ name, sameSite, httpOnly }) => [name, sameSite, httpOnly]),
    [["__Host-kas", "Strict", true]],
  );
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token of a caller").waitFor();
  // The page of the provider has no icon.
  await close(/status of 404/);
});

it("the tree goes on at another replica when the one that serves it is killed", async () => {
  const replicas = await Replicas.start(demo);
  try {
    const { page, logIn, close } = await open({ address: replicas.address });
    await logIn();
    await page.goto(`${replicas.address}/agents/demo?namespace=${demo.namespace}`);
    await page.getByRole("row", { name: /Deployment web/ }).waitFor();
    await page.evaluate(() => (window.isFirstLoad = true));
    const sent = [];
    page.on("request", (request) => sent.push(`${request.method()} ${new URL(request.url()).pathname}`));
    await replicas.killFirst();
    demo.kubectl(["create", "deployment", "afterwards", "--image=busybox:1.35", "--replicas=0"]);
    await page.getByRole("row", { name: /Deployment afterwards/ }).waitFor({ timeout: 60_000 });
    await page.getByText(/The objects are as they were/).waitFor({ state: "hidden" });
    assert.ok(await page.evaluate(() => window.isFirstLoad), "the page was not loaded again");
    assert.ok(!sent.includes("POST /web/v1/session"), "there was no other login");
    await page.reload();
    await page.getByRole("row", { name: /Deployment afterwards/ }).waitFor();
    // The requests that the replica did not complete, and those before the tunnels to the other one.
    await close(/net::ERR_/, /status of 50[234]/);
  } finally {
    await replicas.stop();
    demo.kubectl(["delete", "deployment", "afterwards", "--ignore-not-found"]);
  }
});

describe("in the end", () => {
  it("the objects of an agent that disconnects stay, until it comes back", async () => {
    const { page, logIn, close } = await open();
    await logIn();
    await page.goto(tree());
    await page.getByRole("row", { name: /Deployment web/ }).waitFor();
    const startAgents = demo.killAgents();
    await page.getByText(/The objects are as they were/).waitFor();
    await page.getByRole("row", { name: /Deployment web/ }).waitFor();
    await page.screenshot({ path: `${SCREENSHOTS}disconnected.png` });
    await page.getByRole("button", { name: "About", exact: true }).click();
    await page.getByText(/^connection lost|^closed/).waitFor();
    await page.screenshot({ path: `${SCREENSHOTS}about-disconnected.png` });
    await page.getByRole("button", { name: "Tree", exact: true }).click();
    startAgents();
    await page.getByText(/The objects are as they were/).waitFor({ state: "detached", timeout: 60_000 });
    demo.kubectl(["create", "deployment", "later", "--image=none", "--replicas=0"]);
    await page.getByRole("row", { name: /Deployment later/ }).waitFor();
    await close(/status of 50[234]|ERR_INCOMPLETE_CHUNKED_ENCODING/);
  });

  it("a revoked token ends the session of an open page", async () => {
    const { page, logIn, close } = await open();
    await logIn();
    await page.goto(`${demo.address}/routing`);
    demo.revokeAll();
    await page.getByText("The session has ended, or its token was revoked.").waitFor({ timeout: 60_000 });
    await page.screenshot({ path: `${SCREENSHOTS}revoked.png` });
    await close(/status of 401/);
  });
});

const GITLAB = "https://gitlab.example.com/shop/web/-";

/** Serves an audit log in the place of agentk, which has no event of an environment. Returns the parameters of each request. */
async function serveAuditLog(page) {
  const asked = [];
  const common = {
    type: "event",
    agent: "demo",
    stage: "complete",
    cluster_user: { name: "agentk" },
    status: 200,
  };
  const deployment = {
    ...{
      environment: "live",
      status: "success",
      commit: "3f1c9a7e5d2b4c6a",
      author: "Bob",
      merge_request: 12,
    },
    ...{ merge_request_url: `${GITLAB}/merge_requests/12`, commit_url: "javascript:alert(1)" },
  };
  const job = { id: "302", project: "shop/web", user: "alice" };
  const events = [
    {
      ...{
        ...common,
        position: "0a.1",
        through: "kas",
        time: "2026-01-31T12:00:00Z",
        verb: "delete",
        deployment,
      },
      request: { caller: "gitlab:ci_job:302", id: "request-1", job },
      object: { resource: "configmaps", namespace: "shop", name: "settings" },
    },
    {
      ...{ ...common, position: "0a.2", through: "agentk", time: "2026-01-31T12:00:01Z", verb: "patch" },
      sync: { project: "shop/web", commit: "3f1c9a7e5d2b4c6a" },
      object: { group: "apps", resource: "deployments", namespace: "shop", name: "web" },
    },
  ];
  await page.route(/\/audit\/v1\/events/, (route) => {
    const parameters = new URL(route.request().url()).searchParams;
    asked.push([...parameters]);
    // The second response has the event of the manifests.
    const isFirst = !parameters.has("position");
    const rest = isFirst ? events.slice(0, 1) : events.slice(1);
    const end = { type: "end", position: `0a.${isFirst ? 2 : 3}`, has_more: isFirst };
    const lines = [...(parameters.has("environment") ? [] : rest), end];
    return route.fulfill({ body: lines.map((line) => `${JSON.stringify(line)}\n`).join("") });
  });
  return asked;
}

/** Serves these projects of the agent in the place of agentk. Returns the commands that the page sends. */
async function serveProjects(page, projects) {
  const sent = [];
  await page.route(/\/gitops\/v1\/projects/, (route) => {
    const request = route.request();
    if (request.method() === "GET") return route.fulfill({ json: { projects: Object.values(projects) } });
    const path = request.url().split("/projects/")[1];
    sent.push(path);
    if (path === "lost/recover") projects.lost.recovery = RECOVERY;
    return route.fulfill({ status: 202, json: {} });
  });
  return sent;
}

/** The inventory that agentk would write in place of a lost one. */
const RECOVERY = {
  code: "5c1f",
  count: 12,
  left: 1,
  objects: [{ kind: "Service", namespace: "shop", name: "old" }],
  unknown: ["foos.example.com: forbidden (403)"],
};

/** Projects that wait for the cluster or for a person, by name. */
function waitingProjects(now) {
  const counts = { applied: 1, unchanged: 2, pruned: 0, kept: 0, failed: 0, degraded: 0, progressing: 0 };
  const commit = (id, subject) => ({ id: id.repeat(40), subject, author: "Ada" });
  const common = { reference: "branch main", objects: { total: 3, ...counts } };
  const claim = { kind: "PersistentVolumeClaim", namespace: "shop", name: "data" };
  const reason = "it has the finalizer kubernetes.io/pvc-protection";
  const takes = "12 objects, 2 of them of others <b>";
  return {
    shop: {
      ...{ ...common, project: "shop", state: "syncing", message: "waits for 3 objects" },
      ...{ synced: commit("a", "Before"), working: commit("b", "Now"), attempted: commit("b", "Now") },
      waiting: [{ object: claim, reason, since: now - 310_000 }],
      objects: { ...common.objects, waiting: 3 },
      as_of: now - 12_000,
    },
    blog: {
      ...{ ...common, project: "blog", state: "held", message: "1 deletion waits: kas gitops approve" },
      ...{ synced: commit("a", "Before"), working: commit("c", "Remove the blog") },
      held: {
        ...{ code: "0a1b", count: 1, objects: [{ kind: "Namespace", name: "blog", takes }] },
        ...{ reason: "Git cannot bring a namespace back", commit: "c".repeat(40), since: now - 18_100_000 },
      },
    },
    lost: {
      ...{ ...common, project: "lost", state: "inventory-lost" },
      message: "the inventory was deleted: kas gitops recover",
    },
    new: {
      ...{ ...common, project: "new", state: "of-the-future", message: "agentk is newer", as_of: 1e300 },
      starting: [
        { object: { kind: "Pod", namespace: "shop", name: "web" }, reason: "it pulls images", since: 0 },
      ],
      objects: { ...common.objects, progressing: 2 },
    },
  };
}

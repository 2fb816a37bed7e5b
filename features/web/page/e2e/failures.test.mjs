/** Failures of the network and of single requests: the page says what failed, and the rest of it goes on. */

import assert from "node:assert/strict";
import { it } from "node:test";
import { demo, open, tree, uidOf } from "./fixture.mjs";
import { Front } from "./front.mjs";
import { streamOf } from "./live.mjs";
import { checkAccess, hasFocus, SCREENSHOTS, tabTo } from "./tab.mjs";

for (const [what, body, message] of [
  ["that is not JSON", "<html>", /The health of demo is not known: the answer is not JSON/],
  ["of another form", '{"attention": 7, "counts": {}}', /The answer of demo has a form that this page/],
]) {
  it(`an answer ${what} is an error of its own part of the page`, async () => {
    const { page, logIn, close } = await open();
    const headers = { "x-request-id": "odd-1" };
    await page.route(/graph\/v1\/health/, (route) => route.fulfill({ body, headers }));
    await logIn();
    const alert = page.getByRole("alert");
    await alert.getByText(message).waitFor();
    await alert.getByText("For the caller you.").waitFor();
    if (body.startsWith("<")) await alert.getByText("Request odd-1").waitFor();
    await page.screenshot({ path: `${SCREENSHOTS}malformed.png` });
    await checkAccess(page);
    await page.getByRole("link", { name: "Agents" }).click();
    await page.getByRole("link", { name: "demo" }).click();
    // Of the objects of all namespaces, the page has the first rows only: those with the worst health, of whatever test.
    await page
      .getByRole("row", { name: /healthy|progressing|degraded|missing|unknown/ })
      .first()
      .waitFor();
    await close();
  });
}

it("a view that is opened while kas is away comes when kas is back", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree());
  await page.getByRole("row", { name: /Deployment web/ }).waitFor();
  let isAway = true;
  await page.route(/\/(assets|web|agents)\//, (route) => (isAway ? route.abort() : route.continue()));
  await page.getByRole("button", { name: "Events" }).click();
  await page.getByText("kas does not respond, so that this part of the page cannot be loaded").waitFor();
  assert.equal(await page.getByText("kas has other files now").count(), 0);
  await page.screenshot({ path: `${SCREENSHOTS}view-while-away.png` });
  isAway = false;
  await page.getByRole("columnheader", { name: "Message" }).waitFor();
  await close(/ERR_FAILED/);
});

it("a stream with a line that is not JSON is an error, and begins again", async () => {
  const front = await Front.start(demo.address);
  const { page, logIn, close } = await open({ address: front.address });
  await logIn();
  // The stream stays open.
  const mend = front.answer(/web\/v1\/live/, (_, response) => response.write(streamOf("<html>\n")));
  await page.goto(`${front.address}/agents/demo?namespace=${demo.namespace}`);
  await page.getByText("The objects are not known: The stream has a line that is not JSON.").waitFor();
  mend();
  await page.getByRole("row", { name: /Deployment web/ }).waitFor();
  await close();
  front.stop();
});

it("a list that is not up to date shows since when", async () => {
  const front = await Front.start(demo.address);
  const { page, logIn, close } = await open({ address: front.address });
  await logIn();
  await page.goto(`${front.address}/agents`);
  await page.getByRole("cell", { name: "demo" }).first().waitFor();
  const mend = front.cut(/web\/v1\/live/);
  await page.getByText("The list is not up to date: ").waitFor();
  await page.getByText(/The last answer is from \d+s ago/).waitFor();
  await page.getByRole("cell", { name: "demo" }).first().waitFor();
  await page.screenshot({ path: `${SCREENSHOTS}stale.png` });
  mend();
  await page.getByRole("alert").waitFor({ state: "detached" });
  await close(/ERR_(EMPTY_RESPONSE|INCOMPLETE_CHUNKED_ENCODING|CONNECTION_CLOSED)/);
  front.stop();
});

it("a slow network shows what is loading, and then the content", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.addInitScript(() => {
    window.seen = new Set();
    new MutationObserver(() => {
      for (const { textContent } of document.querySelectorAll("p.muted")) window.seen.add(textContent);
    }).observe(document, { childList: true, subtree: true, characterData: true });
  });
  const session = await page.context().newCDPSession(page);
  await session.send("Network.enable");
  await session.send("Network.emulateNetworkConditions", {
    ...{ offline: false, latency: 400 },
    ...{ downloadThroughput: 50_000, uploadThroughput: 50_000 },
  });
  for (const [address, loading, content] of [
    [demo.address, "Asking the agents…", page.getByRole("link", { name: /crash/ }).first()],
    [`${demo.address}/agents`, "Loading the agents…", page.getByRole("cell", { name: "demo" }).first()],
    [tree(), "Loading the objects…", page.getByRole("row", { name: /Deployment web/ })],
    [tree("&view=events"), "Loading the events…", page.getByRole("table").first()],
    [tree(`&o=${uidOf("deployment/web")}&tab=yaml`), "Loading…", page.getByText("kind: Deployment")],
  ]) {
    await page.goto(address);
    await content.waitFor();
    const seen = await page.evaluate(() => [...window.seen]);
    assert.ok(seen.includes(loading), `${address} has shown ${seen}`);
    assert.equal(await page.getByRole("alert").count(), 0, address);
  }
  await close();
});

it("a reader scales, reads logs and compares with Git with the keyboard alone", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  demo.kubectl(["create", "deployment", "keys", "--image=none", "--replicas=0"]);
  await page.goto(tree(`&o=${uidOf("deployment/keys")}`));
  await tabTo(page, page.getByRole("button", { name: "Scale" }));
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog", { name: /^Scale/ });
  await dialog.waitFor();
  assert.ok(await dialog.getByLabel("Replicas").evaluate((input) => input === document.activeElement));
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Enter");
  await page.getByText("Scale: the API server has accepted it.").waitFor();
  await hasFocus(page, /^Scale$/);
  assert.equal(demo.kubectl(["get", "deployment/keys", "--output=jsonpath={.spec.replicas}"]), "1");

  await page.goto(tree(`&o=${uidOf("deployment/web")}`));
  await tabTo(page, page.getByRole("tab", { name: "Summary" }));
  await page.keyboard.press("End");
  await page.getByLabel("Log", { exact: true }).getByText("line 1").first().waitFor();
  await tabTo(page, page.getByLabel("Show lines with this text"));
  await page.keyboard.type("line 2");
  await page
    .getByLabel("Log", { exact: true })
    .getByText("line 1", { exact: true })
    .first()
    .waitFor({ state: "detached" });
  await tabTo(page, page.getByLabel("Log", { exact: true }));
  await page.keyboard.press("Escape");
  await page.getByRole("region", { name: "Object" }).waitFor({ state: "detached" });
  await hasFocus(page, /^Deployment/);

  const map = { apiVersion: "v1", kind: "ConfigMap", metadata: { name: "keyboard" } };
  demo.commit("Add a map", { "manifests/all.yaml": JSON.stringify(map) });
  await page.goto(`${demo.address}/agents/demo`);
  await tabTo(page, page.getByRole("button", { name: "Changes" }));
  await page.keyboard.press("Enter");
  await page.locator(".health.healthy", { hasText: "synced" }).first().waitFor();
  await tabTo(page, page.getByRole("button", { name: "Compare with Git" }));
  await page.keyboard.press("Enter");
  await page.getByRole("region", { name: "Comparison with Git" }).waitFor();
  await tabTo(page, page.getByRole("button", { name: "Suspend" }));
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor();
  await page.keyboard.press("Tab");
  await tabTo(page, page.getByRole("dialog").getByRole("button", { name: "Suspend" }));
  await page.keyboard.press("Enter");
  await page.locator(".health.suspended", { hasText: "suspended" }).first().waitFor();
  await close();
});

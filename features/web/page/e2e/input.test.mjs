/** Hostile input: objects of a cluster, answers of a cluster, other sites and other tabs. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, it } from "node:test";
import { Demo } from "./demo.mjs";
import { bomb, Front } from "./front.mjs";
import {
  checkAccess,
  launch,
  openTab,
  SCREENSHOTS,
  showOnly,
  splitWords,
  streamOfNodes,
  watchErrors,
} from "./tab.mjs";

/** The most memory that a tab may use while it reads a bomb, in bytes. */
const MAX_HEAP = 512 << 20;

/** @type {Demo} */
let demo;
/** @type {import("playwright-core").Browser} */
let browser;
/** @type {Front} */
let front;

before(async () => {
  demo = await Demo.start();
  front = await Front.start(demo.address);
  browser = await launch();
});

after(async () => {
  await browser?.close();
  front?.stop();
  await demo?.stop();
});

const open = (options) => openTab(browser, demo, options);

/** A pod that only the page sees. */
const pod = (more = {}) => ({
  ...{ uid: "p", kind: "Pod", version: "v1", namespace: "n", name: "pod", health: "healthy" },
  ...{ sequence: 1, status: "Running", created: new Date().toISOString() },
  ...more,
});

/** Lets the front answer as an agent with these objects would. */
function serve(...nodes) {
  front.answer(/web\/v1\/live/, (_, response) => {
    response.setHeader("content-type", "application/octet-stream").end(streamOfNodes(nodes));
  });
  front.answer(/kubernetes\/api\/v1$/, (_, response) => {
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ resources: [{ name: "pods", kind: "Pod", namespaced: true }] }));
  });
}

function respond(body, type = "application/json") {
  return (_, response) => response.setHeader("content-type", type).end(body);
}

it("a name of 253 characters and hostile labels fit into 320 px", async () => {
  const { page, logIn, close } = await open({ width: 320 });
  await logIn();
  const long = "n".repeat(253);
  const labels = {
    "<img src=x onerror=alert(1)>": "<script>alert(1)</script>",
    [`${long}/${"l".repeat(63)}`]: "v".repeat(63),
    "safe\u202egpj.exe": "\u0007\u001b[31mred",
  };
  await showOnly(page, [
    pod({ uid: "d", kind: "K".repeat(63), name: long, namespace: "s".repeat(63), labels }),
    pod({ name: long.toUpperCase(), owners: [{ kind: "K".repeat(63), name: long, uid: "d" }] }),
  ]);
  await page.goto(`${demo.address}/agents/demo`);
  await page.getByRole("row", { name: /KKK/ }).waitFor();
  await checkAccess(page, "tree");
  await page.screenshot({ path: `${SCREENSHOTS}long-tree.png` });
  await page.goto(`${demo.address}/agents/demo?o=d`);
  await page.getByText("3 labels").click();
  await page.getByText("<img src=x onerror=alert(1)>").waitFor();
  await page.getByText("safe⟨U+202E⟩gpj.exe").waitFor();
  await page.getByText("⟨U+0007⟩⟨U+001B⟩[31mred").waitFor();
  await checkAccess(page, "object");
  const drawer = page.getByRole("region", { name: "Object" });
  const overflow = await drawer.evaluate((element) => element.scrollWidth - element.clientWidth);
  assert.ok(overflow <= 0, `the object is ${overflow} px too wide`);
  await page.screenshot({ path: `${SCREENSHOTS}long-object.png` });
  await close();
});

it("a table whose words are wider than the window scrolls by itself", async () => {
  const { page, logIn, close } = await open({ width: 760, address: front.address });
  serve(pod());
  // The longest word that stays whole with the punctuation after it, and names that may break.
  const word = "W".repeat(27);
  const long = "n".repeat(63);
  const event = {
    metadata: { uid: "e" },
    involvedObject: { uid: "gone", kind: word, name: `${word}.${long}`, namespace: long },
    type: "Warning",
    reason: word,
    message: `${word} ${long}`,
    lastTimestamp: new Date().toISOString(),
  };
  const mend = front.answer(/\/api\/v1\/events\?/, respond(JSON.stringify({ items: [event] })));
  await logIn();
  await page.goto(`${front.address}/agents/demo?view=events`);
  const table = page.getByRole("group", { name: "Table that scrolls" });
  await table.waitFor();
  assert.deepEqual(await splitWords(page), []);
  await checkAccess(page, "events");
  await page.screenshot({ path: `${SCREENSHOTS}long-events.png` });
  await table.focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForFunction((box) => box.scrollLeft > 0, await table.elementHandle());
  mend();
  await close();
});

it("a fact is a link only with https", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  const details = {
    script: "javascript:alert(1)",
    spaced: " java\tscript:alert(1)",
    data: "data:text/html,<script>alert(1)</script>",
    plain: "http://example.com/",
    credential: "https://kas.example.com@evil.example.com/",
    secure: "https://example.com/",
  };
  await showOnly(page, [pod({ details, images: ["javascript:alert(2)"] })]);
  await page.goto(`${demo.address}/agents/demo?o=p`);
  const facts = page.locator("dl.facts");
  for (const text of ["javascript:alert(1)", "javascript:alert(2)", details.data, details.credential])
    await facts.getByText(text, { exact: true }).waitFor();
  const links = await facts.getByRole("link").evaluateAll((all) => all.map(({ href, rel }) => [href, rel]));
  assert.deepEqual(links, [[details.secure, "noopener noreferrer nofollow"]]);
  await close();
});

/** Returns the memory of the scripts of a tab, in bytes. */
async function heapOf(page) {
  const session = await page.context().newCDPSession(page);
  return (await session.send("Runtime.getHeapUsage")).usedSize;
}

for (const [what, text] of [
  ["without an end of a line", "\0"],
  ["of short lines", "a\nb\n"],
]) {
  it(`a zip-bombed log ${what} leaves the page usable`, async () => {
    const { page, logIn, close } = await open({ address: front.address });
    serve(pod());
    front.answer(/\/pods\/pod$/, respond(JSON.stringify({ spec: { containers: [{ name: "main" }] } })));
    front.answer(/\/pods\/pod\/log/, bomb(text));
    await logIn();
    await page.goto(`${front.address}/agents/demo?o=p&tab=logs`);
    await page.getByText(/[1-9]\d* of \d+ lines/).waitFor();
    await page.getByRole("button", { name: "Close" }).click();
    await page.getByRole("region", { name: "Object" }).waitFor({ state: "detached" });
    const heap = await heapOf(page);
    assert.ok(heap < MAX_HEAP, `the tab has ${heap >> 20} MiB`);
    await close();
  });
}

it("a zip-bombed object, error and result of PromQL are not read to the end", async () => {
  const { page, logIn, close } = await open({ address: front.address });
  serve(pod());
  const message = /the answer has more than 64 MiB/;
  await logIn();
  front.answer(/\/pods\/pod$/, bomb(" "));
  await page.goto(`${front.address}/agents/demo?o=p&tab=yaml`);
  await page.getByRole("alert").getByText(message).waitFor();
  await page.getByText("For the caller you. Request bomb-1").waitFor();
  front.answer(/\/pods\/pod$/, bomb("x", { status: 500 }));
  await page.reload();
  await page.getByText(/The object cannot be read: x{2000}$/).waitFor();
  front.answer(/prometheus/, bomb(" "));
  await page.goto(`${front.address}/agents/demo?view=metrics`);
  await page.getByText(message).first().waitFor();
  const heap = await heapOf(page);
  assert.ok(heap < MAX_HEAP, `the tab has ${heap >> 20} MiB`);
  await close(/status of 500/);
});

it("a tab of another user does not act as the new one", async () => {
  const { page, errors, logIn, close } = await open();
  const token = await demo.addCaller("bob");
  await logIn();
  await showOnly(page, [pod()]);
  await page.goto(`${demo.address}/agents/demo`);
  await page.getByRole("row", { name: /Pod pod/ }).waitFor();
  const other = await page.context().newPage();
  watchErrors(other, errors);
  await other.goto(demo.address);
  await other.getByRole("button", { name: "Log out" }).click();
  await other.getByLabel("Token of a caller").fill(token);
  await other.keyboard.press("Enter");
  await other.getByRole("banner").getByText("bob").waitFor();

  const sent = [];
  page.on("response", (response) => {
    if (/\/kubernetes\//.test(response.url())) sent.push(response.status());
  });
  // No event of the browser tells the first tab about it.
  await page.getByRole("row", { name: /Pod pod/ }).click();
  await page
    .getByText("This page was loaded for the caller you, and this browser has logged in as bob")
    .waitFor();
  assert.ok(sent.length > 0 && sent.every((status) => status === 401), `${sent}`);
  assert.equal(await page.getByRole("row").count(), 0, "nothing of the first caller is left");
  await checkAccess(page);
  await page.screenshot({ path: `${SCREENSHOTS}other-caller.png` });
  await page.getByRole("button", { name: "Continue as bob" }).click();
  await page.getByRole("banner").getByText("bob").waitFor();
  await close(/status of 401/);
});

it("a cookie of another host of the same site is no session", async () => {
  const { port } = new URL(demo.address);
  const address = `http://page.kas.localhost:${port}`;
  const { page, errors, logIn, close } = await open({ address });
  const victim = page.context();
  // The session of the attacker, in which the reader would work without noticing it.
  const login = { method: "POST", headers: { "Kas-Web": "1" }, body: JSON.stringify({ token: demo.token }) };
  const [pair] = (await fetch(`${demo.address}/web/v1/session`, login)).headers.get("set-cookie").split(";");
  const site = "Domain=kas.localhost; Path=/";
  const evil = createServer((_, response) => {
    response.setHeader("set-cookie", [
      `${pair}; ${site}; Secure`,
      `${pair}; ${site}`,
      `${pair}; Path=/; Secure`,
      `${pair.replace("__Host-", "__host-")}; ${site}`,
      `${pair.replace("__Host-", "")}; ${site}`,
      `=${pair}; ${site}`,
      `tossed=1; ${site}`,
    ]);
    response.end("evil");
  });
  await new Promise((resolve) => evil.listen(0, "127.0.0.1", resolve));
  const attack = await victim.newPage();
  await attack.goto(`http://evil.kas.localhost:${evil.address().port}/`);
  evil.close();
  const sent = await victim.cookies(address);
  assert.ok(
    sent.some(({ name }) => name === "tossed"),
    "the two hosts are of one site",
  );
  await page.goto(address);
  await page.getByLabel("Token of a caller").waitFor();
  await logIn();
  assert.notEqual(
    (await victim.cookies(address)).find(({ name }) => name === "__Host-kas").value,
    pair.split("=")[1],
  );
  assert.deepEqual(errors, []);
  await close();
});

/**
 * Measures how long a reader waits for the page, with kas, agentk and the cluster of KUBECONFIG: `npm run measure`. Fails where a number
 * is worse than its limit.
 */

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { request as send } from "node:http";
import { availableParallelism, loadavg } from "node:os";
import { Demo, PROGRAMS } from "./demo.mjs";
import { DATA, readKinds } from "./live.mjs";
import { launch, showOnly } from "./tab.mjs";

/** The time that the network adds to each exchange, in milliseconds. */
const LATENCY = 40;
/** The objects in the tree of the first measurement. */
const OBJECTS = 500;
/** The open tabs, and the most trees of a process of agentk. */
const TABS = 200;
const TREES = 64;
/** The height by which the tree moves in a frame, in pixels. */
const STEP = 40;

/** Measurements that are worse than their limits. */
const failures = [];

const busy = loadavg()[0].toFixed(1);
console.log(`programs: ${PROGRAMS}; processes that want one of ${availableParallelism()} cores: ${busy}`);
const demo = await Demo.start();
const browser = await launch();
try {
  demo.fill();
  const template = {
    metadata: { labels: { app: "many" } },
    spec: { containers: [{ name: "main", image: "none" }] },
  };
  const selector = { matchLabels: { app: "many" } };
  const items = Array.from({ length: OBJECTS }, (_, index) => ({
    ...{ apiVersion: "apps/v1", kind: "Deployment", metadata: { name: `object-${index}` } },
    // Without a controller of its own, so that there are no ReplicaSets.
    spec: { replicas: 0, paused: true, selector, template },
  }));
  demo.kubectl(["create", "--filename=-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  await page.goto(demo.address);
  await page.getByLabel("Token of a caller").fill(demo.token);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "What needs attention" }).waitFor();
  const tree = `${demo.address}/agents/demo?namespace=${demo.namespace}`;
  limit(`all ${OBJECTS} rows of the tree, ms`, await coldStarts(context, tree), { most: 1000 });
  limit("a change is on the screen after, ms", await changes(page, tree), { most: 500 });
  const { rates, dropped, presented } = await scroll(page);
  limit("frames in a second of scrolling 5,000 rows", rates, { least: 50 });
  limit(`dropped frames of ${presented + dropped}, %`, [(100 * dropped) / (presented + dropped)], {
    most: 17,
  });
  limit(`growth of kas with ${TABS} tabs, MiB`, [await tabs(context)], { most: 50 });
} finally {
  await browser.close();
  await demo.stop();
}
for (const failure of failures) console.error(failure);
process.exitCode = failures.length > 0 ? 1 : 0;

/** Prints values. Their median must be within the limits. */
function limit(what, values, { least = -Infinity, most = Infinity }) {
  const sorted = values.map((value) => Math.round(10 * value) / 10).sort((one, other) => one - other);
  const median = sorted[sorted.length >> 1];
  console.log(`${what}: median ${median}, of ${sorted.join(" ")}`);
  if (median < least) failures.push(`${what}: ${median} is less than ${least}`);
  if (median > most) failures.push(`${what}: ${median} is more than ${most}`);
}

/** The times from the navigation until the tree has all rows, with an empty cache and an agentk that has just connected. */
async function coldStarts(context, address) {
  const times = [];
  for (let run = 0; run < 5; run += 1) {
    const start = demo.killAgents();
    start();
    await demo.waitForTunnels(2);
    const page = await context.newPage();
    const session = await context.newCDPSession(page);
    await session.send("Network.enable");
    await session.send("Network.clearBrowserCache");
    await session.send("Network.emulateNetworkConditions", {
      ...{ offline: false, latency: LATENCY },
      ...{ downloadThroughput: -1, uploadThroughput: -1 },
    });
    await page.addInitScript((objects) => {
      new MutationObserver((_, observer) => {
        const rows = Number(document.querySelector("[aria-rowcount]")?.getAttribute("aria-rowcount") ?? 0);
        if (rows <= objects) return;
        observer.disconnect();
        requestAnimationFrame(() => (window.painted = performance.now()));
      }).observe(document, { attributes: true, childList: true, subtree: true });
    }, OBJECTS);
    await page.goto(address);
    times.push(await (await page.waitForFunction(() => window.painted)).jsonValue());
    await page.close();
  }
  return times;
}

/** The times from the start of kubectl until the tree shows what it has changed. */
async function changes(page, address) {
  await page.goto(`${address}&q=web`);
  const row = page.getByRole("row", { name: /Deployment web/ });
  await row.waitFor();
  const times = [];
  for (let run = 0; run < 7; run += 1) {
    const name = `web-${run}`;
    const shown = page.evaluate(
      (text) =>
        new Promise((resolve) => {
          const timer = setInterval(() => {
            if (!document.querySelector(".tree-body")?.textContent.includes(text)) return;
            clearInterval(timer);
            resolve(Date.now());
          }, 5);
        }),
      `Deployment ${name}`,
    );
    const called = Date.now();
    demo.kubectl(["create", "deployment", name, "--image=none", "--replicas=0"]);
    times.push((await shown) - called);
  }
  return times;
}

/** The growth of the resident memory of kas by open tabs, each of which follows the tree. */
async function tabs(context) {
  const agents = Math.ceil(TABS / TREES);
  demo.addAgents(agents - 1);
  await demo.waitForTunnels(2 * agents);
  const [kas] = execFileSync("pgrep", ["--full", `kas .*${demo.directory}`], { encoding: "utf8" }).split(
    "\n",
  );
  const memory = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${kas}/status`, "utf8"))[1]) / 1024;
  const [cookie] = await context.cookies();
  const headers = { "kas-web": "1", cookie: `${cookie.name}=${cookie.value}` };
  const open = () =>
    new Promise((resolve, reject) => {
      const init = { method: "POST", headers, agent: false };
      const request = send(`${demo.address}/web/v1/live`, init, (response) => {
        if (response.statusCode !== 200) return reject(new Error(`the stream got ${response.statusCode}`));
        // The snapshot has arrived when nothing has followed for a while.
        let timer;
        readKinds(response, (kind) => {
          if (kind !== DATA) return;
          clearTimeout(timer);
          timer = setTimeout(() => resolve(request), 500);
        });
        response.on("error", () => {});
      });
      request.on("error", reject);
      request.end(JSON.stringify({ agents: true, watches: [{ agent: "demo" }] }));
    });
  (await open()).destroy();
  const before = memory();
  const requests = [];
  while (requests.length < TABS) requests.push(...(await Promise.all(Array.from({ length: 20 }, open))));
  const growth = memory() - before;
  for (const request of requests) request.destroy();
  return growth;
}

/** Scrolls 5,000 rows. Returns the frames in a second, and those that the browser has presented and dropped. */
async function scroll(page) {
  await showOnly(
    page,
    Array.from({ length: 5000 }, (_, index) => ({
      ...{ uid: `${index}`, kind: "Pod", version: "v1", namespace: "n", name: `pod-${index + 10_000}` },
      ...{ health: "healthy", sequence: index, status: "Running" },
    })),
  );
  await page.goto(`${demo.address}/agents/demo`);
  await page.getByRole("row", { name: /pod-10000/ }).waitFor();
  await browser.startTracing(page, { categories: ["cc", "benchmark"] });
  const rates = [];
  for (let run = 0; run < 5; run += 1) {
    rates.push(
      await page.evaluate(
        (step) =>
          new Promise((resolve) => {
            const tree = document.querySelector(".tree");
            const begin = performance.now();
            let frames = 0;
            const move = () => {
              const elapsed = performance.now() - begin;
              if (elapsed >= 2000) return resolve((frames * 1000) / elapsed);
              frames += 1;
              tree.scrollTop += step;
              requestAnimationFrame(move);
            };
            requestAnimationFrame(move);
          }),
        STEP,
      ),
    );
  }
  const { traceEvents } = JSON.parse((await browser.stopTracing()).toString());
  const states = traceEvents
    .filter(({ name, ph }) => name === "PipelineReporter" && ph === "b")
    .map(({ args }) => args.frame_reporter.state);
  const count = (pattern) => states.filter((state) => pattern.test(state)).length;
  return { rates, dropped: count(/DROPPED/), presented: count(/PRESENTED_ALL/) };
}

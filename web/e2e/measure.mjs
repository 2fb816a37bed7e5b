/** Prints how long a reader waits for the page, with kas, agentk and the cluster of KUBECONFIG: `npm run measure`. */

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { request as send } from "node:http";
import { chromium } from "playwright-core";
import { Demo } from "./demo.mjs";
import { DATA, readKinds, showEvents } from "./live.mjs";

/** The time that the network adds to each exchange, in milliseconds. */
const LATENCY = 40;

const demo = await Demo.start();
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
try {
  demo.fill();
  const items = Array.from({ length: 500 }, (_, index) => ({
    ...{ apiVersion: "v1", kind: "ConfigMap", metadata: { name: `object-${index}` } },
  }));
  demo.kubectl(["create", "--filename=-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  await page.goto(demo.address);
  await page.getByLabel("Token of a caller").fill(demo.token);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "What needs attention" }).waitFor();
  const tree = `${demo.address}/agents/demo?namespace=${demo.namespace}`;
  print("first row of the tree, ms", await firstRow(context, tree));
  print("a change is on the screen after, ms", await change(page, tree));
  print("KiB of kas for each of 60 open tabs", [await tabs(context)]);
  print("frames in a second of scrolling 5,000 rows", await scroll(page));
} finally {
  await browser.close();
  await demo.stop();
}

function print(what, values) {
  const sorted = values.map(Math.round).sort((one, other) => one - other);
  console.log(`${what}: median ${sorted[sorted.length >> 1]}, of ${sorted.join(" ")}`);
}

/** The time from the navigation, with nothing in the cache, until the tree has its first row. */
async function firstRow(context, address) {
  const times = [];
  for (let run = 0; run < 7; run += 1) {
    const page = await context.newPage();
    const session = await context.newCDPSession(page);
    await session.send("Network.enable");
    await session.send("Network.clearBrowserCache");
    const unlimited = { downloadThroughput: -1, uploadThroughput: -1 };
    await session.send("Network.emulateNetworkConditions", {
      ...{ offline: false, latency: LATENCY },
      ...unlimited,
    });
    await page.addInitScript(() => {
      new MutationObserver((_, observer) => {
        if (!document.querySelector(".tree-body [role=row]")) return;
        observer.disconnect();
        requestAnimationFrame(() => (window.firstRow = performance.now()));
      }).observe(document, { childList: true, subtree: true });
    });
    await page.goto(address);
    times.push(await (await page.waitForFunction(() => window.firstRow)).jsonValue());
    await page.close();
  }
  return times;
}

/** The time from the answer of the API server to a change until the tree shows it. */
async function change(page, address) {
  await page.goto(`${address}&q=Deployment`);
  const row = page.getByRole("row", { name: /Deployment web/ });
  await row.waitFor();
  const times = [];
  for (let run = 0; run < 7; run += 1) {
    const state = `state-${run}`;
    const shown = page.evaluate(
      (text) =>
        new Promise((resolve) => {
          const timer = setInterval(() => {
            if (!document.querySelector(".tree-body")?.textContent.includes(text)) return;
            clearInterval(timer);
            resolve(Date.now());
          }, 5);
        }),
      state,
    );
    demo.kubectl(["create", "deployment", state, "--image=none", "--replicas=0"]);
    const changed = Date.now();
    times.push((await shown) - changed);
  }
  return times;
}

/** The memory of kas that an open tab needs, in KiB. */
async function tabs(context) {
  // A pod of agentk has at most 64 followers.
  const COUNT = 60;
  const kas = execFileSync("pgrep", ["--full", `kas .*${demo.directory}`], { encoding: "utf8" }).split(
    "\n",
  )[0];
  const memory = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${kas}/status`, "utf8"))[1]);
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
  const requests = await Promise.all(Array.from({ length: COUNT }, open));
  const perTab = (memory() - before) / COUNT;
  for (const request of requests) request.destroy();
  return perTab;
}

/** The frames in a second while 5,000 rows move by 40 px in each frame. */
async function scroll(page) {
  const nodes = Array.from({ length: 5000 }, (_, index) => ({
    event: "node",
    node: {
      ...{ uid: `${index}`, kind: "Pod", version: "v1", namespace: "n", name: `pod-${index + 10_000}` },
      ...{ health: "healthy", sequence: index, status: "Running" },
    },
  }));
  const events = [
    { event: "begin", mode: "snapshot" },
    ...nodes,
    { event: "state", loaded: true, partial: [], resources: [] },
    { event: "commit", token: "1" },
  ];
  await showEvents(page, events);
  await page.goto(`${demo.address}/agents/demo`);
  await page.getByRole("row", { name: /pod-10000/ }).waitFor();
  const rates = [];
  for (let run = 0; run < 5; run += 1) {
    rates.push(
      await page.evaluate(
        () =>
          new Promise((resolve) => {
            const tree = document.querySelector(".tree");
            const begin = performance.now();
            let frames = 0;
            const step = () => {
              const elapsed = performance.now() - begin;
              if (elapsed >= 2000) return resolve((frames * 1000) / elapsed);
              frames += 1;
              tree.scrollTop += 40;
              requestAnimationFrame(step);
            };
            requestAnimationFrame(step);
          }),
      ),
    );
  }
  return rates;
}

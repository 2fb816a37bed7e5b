/** Tabs of a browser for the tests of the page. */

import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { streamOf } from "./live.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** The directory of the screenshots, which people look at. */
export const SCREENSHOTS = new URL("../../../../target/web/", import.meta.url).pathname;

export function launch() {
  mkdirSync(SCREENSHOTS, { recursive: true });
  // Chromium has no sandbox for root.
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox"],
  });
}

/**
 * The message of Chromium about each request that it ends because a network interface came or went. The node of the cluster is this machine, and
 * each pod that starts or ends has an interface. The page has to go on by itself, which the tests see.
 */
const NETWORK_CHANGED = /net::ERR_NETWORK_CHANGED/;

/**
 * Opens a tab at the login. `errors` has everything that the browser complains about; `close` fails if there is another one than those
 * that match `expected`.
 */
export async function openTab(browser, demo, options = {}) {
  const { width = 1440, height = 900, colorScheme = "light", address = demo.address } = options;
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme,
    reducedMotion: "reduce",
  });
  const errors = [];
  await context.exposeFunction("reportViolation", (text) => errors.push(text));
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      window.reportViolation(`CSP: ${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}`);
    });
  });
  const page = await context.newPage();
  watchErrors(page, errors);
  await page.goto(address);
  await page.getByLabel("Token of a caller").waitFor();
  const logIn = async (token = demo.token) => {
    await page.getByLabel("Token of a caller").fill(token);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "What needs attention" }).waitFor();
  };
  const close = async (...expected) => {
    await context.close();
    assert.deepEqual(
      errors.filter((text) => ![NETWORK_CHANGED, ...expected].some((pattern) => pattern.test(text))),
      [],
    );
  };
  return { page, errors, logIn, close };
}

/** Collects what the browser complains about in a tab. */
export function watchErrors(page, errors) {
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(`${error}`));
  page.on("dialog", (dialog) => {
    errors.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
}

/** Checks WCAG 2.2 AA, and that nothing is wider than the window. `contrast` is whether the colours are checked, which takes most of the time. */
export async function checkAccess(page, name = "page", { contrast = true } = {}) {
  // The policy of the page does not concern what Playwright adds.
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(AXE);
  const { violations } = await page.evaluate(
    (enabled) =>
      window.axe.run({
        resultTypes: ["violations"],
        // "target-size" is the only rule of WCAG 2.2 AA, which axe leaves out without a word.
        rules: { "target-size": { enabled: true }, "color-contrast": { enabled } },
      }),
    contrast,
  );
  const found = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
  assert.deepEqual(found, [], name);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(overflow <= 0, `${name} is ${overflow} px too wide`);
}

/** Returns the words of tables that are in two lines: those without punctuation, and not longer than 28 characters. */
export function splitWords(page) {
  return page.evaluate(() => {
    const split = [];
    for (const cell of document.querySelectorAll("td")) {
      const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const node = texts.currentNode;
        for (const { 0: word, index } of node.data.matchAll(/[\p{L}\p{N}]+/gu)) {
          if (word.length > 28) continue;
          const range = document.createRange();
          range.setStart(node, index);
          range.setEnd(node, index + word.length);
          const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
          if (lines.size > 1) split.push(word);
        }
      }
    }
    return split;
  });
}

/** Waits until an element with this text has the focus. */
export async function hasFocus(page, pattern) {
  let text = "";
  for (const end = Date.now() + 10_000; Date.now() < end;) {
    text = await page.evaluate(() => document.activeElement?.textContent ?? "");
    if (pattern.test(text)) return;
  }
  assert.match(text, pattern);
}

/** Presses Tab until the element of a locator has the focus. */
export async function tabTo(page, locator) {
  for (let presses = 0; presses < 60; presses += 1) {
    if (await locator.evaluate((element) => element === document.activeElement)) return;
    await page.keyboard.press("Tab");
  }
  assert.fail(`the focus does not come to ${locator}`);
}

/** Returns the body of a stream whose first watch has these objects. */
export function streamOfNodes(nodes) {
  const events = [
    { event: "begin", mode: "snapshot" },
    ...nodes.map((node) => ({ event: "node", node })),
    { event: "state", loaded: true, partial: [], resources: [] },
    { event: "commit", token: "1" },
  ];
  return streamOf(events.map((event) => `${JSON.stringify(event)}\n`).join(""));
}

/** Lets the page see these objects only. The Kubernetes API stays that of the cluster. */
export function showOnly(page, nodes) {
  const body = streamOfNodes(nodes);
  return page.route("**/web/v1/live", (route) =>
    route.fulfill({ contentType: "application/octet-stream", body }),
  );
}

/** Every page is accessible (WCAG 2.2 AA) and in order with each width and colour scheme, and is used with the keyboard alone. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { demo, open, podOf, tree, uidOf } from "./fixture.mjs";
import { checkAccess, hasFocus, SCREENSHOTS, splitWords } from "./tab.mjs";

/** Sends a request with the session of the page, which is not one of the page itself. */
function send(page, path, id) {
  return page.request.get(demo.address + path, { headers: { "kas-web": "1", "x-request-id": id } });
}

describe("every page", () => {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of colorScheme === "light" ? [1440, 320, 3840] : [1440, 320]) {
      it(`is accessible and in order: ${colorScheme}, ${width} px`, async () => {
        const { page, logIn, close } = await open({ width, colorScheme });
        const check = async (name) => {
          await page.screenshot({ path: `${SCREENSHOTS}${name}-${colorScheme}-${width}.png` });
          // The widest window has the colours of one of 1440 px, except beside an open object, where it shows more columns.
          await checkAccess(page, name, { contrast: width < 3840 || name.startsWith("object-") });
        };
        await check("login");
        await logIn();
        await page.getByRole("link", { name: /crash/ }).first().waitFor();
        await check("attention");
        for (const name of ["environments", "agents", "routing"]) {
          await page
            .getByRole("navigation", { name: "Pages" })
            .getByRole("link", { name, exact: false })
            .click();
          await page.getByRole("cell", { name: "demo" }).first().waitFor();
          await check(name);
        }
        await send(page, "/agents/nobody/kubernetes/api", `refused-${colorScheme}-${width}`);
        await page.goto(`${demo.address}/audit?result=deny`);
        await page.getByRole("link", { name: `refused-${colorScheme}-${width}` }).waitFor();
        await check("audit");
        await send(page, "/agents/demo/kubernetes/version", "found-1");
        await page.goto(`${demo.address}/routing?request=found-1`);
        await page.getByRole("listitem").filter({ hasText: "Cluster" }).first().waitFor();
        await check("request");
        await page.goto(`${demo.address}/e/shop%2Fweb/live`);
        await page.getByRole("row", { name: /Deployment web/ }).waitFor();
        await check("environment");
        await page.goto(tree());
        await page.getByRole("row", { name: /Deployment web/ }).waitFor();
        await check("tree");
        for (const view of ["list", "map", "changes", "logs", "events", "metrics", "components", "about"]) {
          await page.goto(tree(`&view=${view}`));
          await page.locator("table, .notice, .project, .chart, [role=grid], .map").first().waitFor();
          await check(view);
        }
        const pod = podOf("web");
        for (const [tab, sign] of [
          ["summary", "Owned by"],
          ["conditions", "ContainersReady"],
          ["yaml", "apiVersion"],
          ["events", "Started"],
          ["logs", "line 0"],
        ]) {
          await page.goto(tree(`&o=${pod}&tab=${tab}`));
          await page.getByRole("tabpanel").getByText(sign).first().waitFor();
          await check(`object-${tab}`);
        }
        await page.goto(`${demo.address}/nowhere`);
        await page.getByText("There is no such page").waitFor();
        await check("missing");
        await close();
      });
    }
  }
});

it("everything works with the keyboard alone", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree());
  await page.getByRole("row", { name: /Deployment web/ }).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("web");
  await page.getByRole("row", { name: /Deployment crash/ }).waitFor({ state: "detached" });
  const focused = (pattern) => hasFocus(page, pattern);
  for (let presses = 0; presses < 20; presses += 1) {
    if ((await page.evaluate(() => document.activeElement?.getAttribute("role"))) === "row") break;
    await page.keyboard.press("Tab");
  }
  await focused(/Deployment web/);
  await page.keyboard.press("j");
  await focused(/ReplicaSet web/);
  await page.keyboard.press("ArrowLeft");
  await page
    .getByRole("row", { name: /Pod web/ })
    .first()
    .waitFor({ state: "detached" });
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await focused(/Pod web/);
  await page.keyboard.press("Enter");
  await page.getByRole("region", { name: "Object" }).waitFor();
  await focused(/^Pod\/web/);
  await page.keyboard.press("Escape");
  await page.getByRole("region", { name: "Object" }).waitFor({ state: "detached" });
  await focused(/Pod web/);
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog", { name: "Keys" }).waitFor({ state: "hidden" });
  await close();
});

it("the list is sorted by its columns, and used with the keyboard", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree("&view=list"));
  const rows = page.getByRole("grid", { name: "Objects" }).locator(".tree-body [role=row]");
  await rows.first().getByText("degraded").waitFor();
  await page.getByRole("button", { name: "Kind", exact: true }).click();
  await page.getByRole("columnheader", { name: "Kind" }).and(page.locator("[aria-sort=ascending]")).waitFor();
  await rows.first().getByText("Deployment").waitFor();
  await page.getByRole("button", { name: "Kind", exact: true }).click();
  await page.locator("[role=columnheader][aria-sort=descending]").waitFor();
  await page.getByRole("button", { name: "Kind", exact: true }).click();
  await rows.first().focus();
  await page.keyboard.press("j");
  await hasFocus(page, /^Deployment.*web/);
  await page.keyboard.press("Enter");
  await page.getByRole("region", { name: "Object" }).getByText("Deployment/web").waitFor();
  await page.keyboard.press("Escape");
  await hasFocus(page, /^Deployment.*web/);
  await close();
});

it("the tabs of an object are chosen with the arrow keys", async () => {
  const { page, logIn, close } = await open();
  await logIn();
  await page.goto(tree(`&o=${uidOf("deployment/web")}`));
  await page.getByRole("tab", { name: "Summary" }).focus();
  await page.keyboard.press("ArrowRight");
  await hasFocus(page, /^Conditions$/);
  await page.getByRole("tabpanel", { name: "Conditions" }).getByText("MinimumReplicasAvailable").waitFor();
  await page.keyboard.press("End");
  await page.getByRole("tabpanel", { name: "Logs" }).getByText("line 0").first().waitFor();
  await page.keyboard.press("ArrowRight");
  await page.getByRole("tabpanel", { name: "Summary" }).waitFor();
  await close();
});

it("words of tables stay whole", async () => {
  for (const width of [1440, 1024, 760]) {
    const { page, logIn, close } = await open({ width });
    await logIn();
    await page
      .getByText(/crashed .*with exit code 1/)
      .first()
      .waitFor();
    for (const path of [
      "/",
      "/agents/demo?view=events",
      "/audit",
      "/agents/demo?view=about",
      "/environments",
    ]) {
      await page.goto(demo.address + path);
      await page.locator("td").first().waitFor();
      assert.deepEqual(await splitWords(page), [], `${path} with ${width} px`);
      await checkAccess(page, `${path} with ${width} px`);
    }
    await page.goto(`${demo.address}/agents/demo?view=events`);
    await page.locator("td").first().waitFor();
    await page.screenshot({ path: `${SCREENSHOTS}events-${width}.png` });
    await close();
  }
});

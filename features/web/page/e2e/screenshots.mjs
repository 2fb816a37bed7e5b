/** Takes the screenshots of docs/web.md, with kas, agentk and the cluster of KUBECONFIG: `npm run screenshots`. Look at each of them. */

import { Demo } from "./demo.mjs";
import { launch, openTab } from "./tab.mjs";

const DIRECTORY = new URL("../../../../docs/web/", import.meta.url).pathname;

const demo = await Demo.start();
const browser = await launch();
try {
  demo.fill();
  const { page, logIn, close } = await openTab(browser, demo);
  const take = async (name, sign) => {
    await sign.waitFor();
    await page.screenshot({ path: `${DIRECTORY}${name}.png` });
  };
  const tree = (more = "") => `${demo.address}/agents/demo?namespace=${demo.namespace}${more}`;
  const uid = (app) =>
    demo.kubectl(["get", "pods", `--selector=app=${app}`, "--output=jsonpath={.items[0].metadata.uid}"]);
  const discount = (value) => ({
    "manifests/shop.yaml": JSON.stringify({
      ...{ apiVersion: "v1", kind: "ConfigMap", metadata: { name: "shop" } },
      data: { currency: "EUR", discount: value },
    }),
  });
  await logIn();
  await take("attention", page.getByRole("link", { name: "Deployment/crash" }).first());
  await page.goto(tree());
  await page.getByRole("row", { name: /Deployment web/ }).press("ArrowRight");
  await page.getByRole("row", { name: /ReplicaSet web/ }).press("ArrowRight");
  await take("tree", page.getByRole("row", { name: /Pod web/ }).first());
  await page.goto(tree(`&o=${uid("web")}`));
  await take("object", page.getByRole("button", { name: "Delete" }));
  const web = demo.kubectl(["get", "deployment/web", "--output=jsonpath={.metadata.uid}"]);
  await page.goto(tree(`&o=${web}&tab=logs`));
  // Without the lines that tests need.
  await page.getByLabel("Show lines with this text").fill("line");
  await page.getByText(/^\d+ of \d+ lines of 2 pods/).waitFor();
  await take("logs", page.getByText("line 12").nth(1));

  demo.commit("Give a discount of 10 %", discount("10"));
  await page.goto(tree("&view=changes"));
  await page.locator(".health.healthy", { hasText: "synced" }).first().waitFor();
  await page.getByRole("button", { name: "Suspend" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Suspend" }).click();
  await page.locator(".health.suspended", { hasText: "suspended" }).first().waitFor();
  demo.kubectl(["patch", "configmap/shop", "--type=merge", '--patch={"data":{"discount":"50"}}']);
  await page.getByRole("button", { name: "Compare with Git" }).click();
  await take("changes", page.getByText("is changed"));
  await close();
} finally {
  await browser.close();
  await demo.stop();
}

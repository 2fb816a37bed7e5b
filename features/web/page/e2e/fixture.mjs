/**
 * The fixture of a file of tests: a demo with its objects, and a browser. Each file is a process of its own, and two files run at the same time:
 * they share the cluster and the directory of the screenshots. A test of all namespaces finds its objects by `demo.namespace`.
 */

import { after, before } from "node:test";
import { Demo } from "./demo.mjs";
import { launch, openTab } from "./tab.mjs";

/** @type {Demo} */
export let demo;
/** @type {import("playwright-core").Browser} */
let browser;

before(async () => {
  demo = await Demo.start();
  demo.fill();
  browser = await launch();
});

after(async () => {
  await browser?.close();
  await demo?.stop();
});

/** Opens a tab at the login. */
export const open = (options) => openTab(browser, demo, options);

/** Returns the address of the objects of the namespace. */
export const tree = (more = "") => `${demo.address}/agents/demo?namespace=${demo.namespace}${more}`;

/** Returns the UID of an object. */
export function uidOf(resource) {
  return demo.kubectl(["get", resource, "--output=jsonpath={.metadata.uid}"]);
}

/** Returns the UID of a pod of a Deployment. */
export function podOf(app) {
  return demo.kubectl(["get", "pods", `--selector=app=${app}`, "--output=jsonpath={.items[0].metadata.uid}"]);
}

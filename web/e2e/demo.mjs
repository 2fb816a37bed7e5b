/** Starts `loadtest demo` with the cluster of KUBECONFIG, and objects for the tests of the page in a namespace. */

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { Prometheus } from "./prometheus.mjs";

const PROGRAM = new URL("../../target/debug/loadtest", import.meta.url).pathname;
/** The time in which the programs have to start, in milliseconds. */
const START = 60_000;

export class Demo {
  constructor(started) {
    this.process = started.process;
    this.directory = started.directory;
    this.namespace = started.namespace;
    this.address = started.address;
    this.token = started.token;
    this.prometheus = started.prometheus;
  }

  static async start() {
    const directory = mkdtempSync(join(tmpdir(), "kas-page-"));
    const namespace = `page-${Math.random().toString(36).slice(2, 8)}`;
    execFileSync("kubectl", ["create", "namespace", namespace]);
    git(directory, "init", "--quiet", "--initial-branch=main", "agents");
    const repository = join(directory, "agents");
    const prometheus = await Prometheus.start(join(directory, "prometheus"), namespace);
    const flags = ["--configuration", repository, "--prometheus-url", prometheus.url];
    const child = spawn(PROGRAM, ["demo", "--directory", directory, ...flags], {
      env: { ...process.env, POD_NAMESPACE: namespace },
      stdio: ["ignore", "pipe", "inherit"],
    });
    const found = await new Promise((resolve, reject) => {
      let address, token;
      const timer = setTimeout(
        () => reject(new Error("the demo did not print the address of the page")),
        START,
      );
      child.on("exit", (code) => reject(new Error(`the demo has ended with ${code}`)));
      createInterface({ input: child.stdout }).on("line", (line) => {
        token ??= /log in with the token (\S+)/.exec(line)?.[1];
        address ??= /^ +(http:\/\/localhost:\d+)$/.exec(line)?.[1];
        if (!line.includes("Ctrl-C")) return;
        clearTimeout(timer);
        resolve({ address, token });
      });
    });
    return new Demo({ process: child, directory, namespace, prometheus, ...found });
  }

  /** Commits files to the repository with the configuration of the agent, which has one project of manifests. */
  commit(message, files) {
    const project = `{paths: [{glob: /manifests/**}], default_namespace: ${this.namespace}, interval: 1s}`;
    this.configure(message, `gitops: {manifest_projects: [${project}]}\n`, files);
  }

  /** Commits a configuration of the agent, which names two environments, with these sections and files. */
  configure(message, sections, files = {}) {
    const repository = join(this.directory, "agents");
    const places = [
      `{slug: live, project: shop/web, tier: production, namespace: ${this.namespace}, labels: {app: web}}`,
      `{slug: broken, project: shop/web, tier: staging, namespace: ${this.namespace}, labels: {app: crash}}`,
    ];
    const environments = `environments: [${places.join(", ")}]\n`;
    const all = { ".gitlab/agents/demo/config.yaml": environments + sections, ...files };
    for (const [path, text] of Object.entries(all)) {
      mkdirSync(dirname(join(repository, path)), { recursive: true });
      writeFileSync(join(repository, path), text);
    }
    git(repository, "add", "--all");
    git(repository, "commit", "--quiet", `--message=${message}`);
  }

  /** Runs kubectl in the namespace. */
  kubectl(arguments_, input = "") {
    return execFileSync("kubectl", ["--namespace", this.namespace, ...arguments_], {
      input,
      encoding: "utf8",
    });
  }

  /** Creates some healthy, some broken and some hostile objects. */
  fill() {
    this.configure("Name two environments", "");
    this.kubectl(
      ["apply", "--filename=-"],
      JSON.stringify({ apiVersion: "v1", kind: "List", items: objects() }),
    );
    const uid = this.kubectl(["get", "deployment/web", "--output=jsonpath={.metadata.uid}"]);
    this.kubectl(["apply", "--filename=-"], JSON.stringify(hostileEvent(this.namespace, uid)));
    this.kubectl(["wait", "--for=condition=Available", "--timeout=90s", "deployment/web"]);
  }

  /** Removes all callers from the identity file, which kas reads again. */
  revokeAll() {
    const file = join(this.directory, "identity.yaml");
    const text = readFileSync(file, "utf8");
    writeFileSync(`${file}.new`, text.replace(/^callers:[^]*/m, "callers: []\n"));
    renameSync(`${file}.new`, file);
  }

  /** Ends the processes of agentk at once. */
  killAgents() {
    execFileSync("pkill", ["-KILL", "--full", `agentk .*${this.directory}`]);
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill("SIGINT");
    await ended;
    await this.prometheus.stop();
    rmSync(this.directory, { recursive: true });
    execFileSync("kubectl", ["delete", "namespace", this.namespace, "--wait=false"]);
  }
}

function git(directory, ...arguments_) {
  const author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
  execFileSync("git", ["-C", directory, ...author, ...arguments_]);
}

/** The texts of a hostile cluster. */
const HOSTILE = {
  html: "<img src=x onerror=alert(1)>",
  link: "javascript:alert(1)",
  reversed: "safe\u202egpj.exe",
};

function objects() {
  const script = [
    "printf '\\033[31mred\\033[0m <script>alert(1)</script> \\033]0;title\\007 \\342\\200\\256end\\n'",
    "head -c 1048576 /dev/zero | tr '\\0' x; echo",
    "i=0; while true; do echo line $i; i=$((i+1)); sleep 1; done",
  ].join("; ");
  return [
    deployment("web", script, 2),
    deployment("crash", "echo out of order; exit 1", 1),
    {
      apiVersion: "v1",
      kind: "Secret",
      metadata: { name: "keys" },
      stringData: { password: "hunter2-of-the-test" },
    },
  ];
}

function hostileEvent(namespace, uid) {
  return {
    apiVersion: "v1",
    kind: "Event",
    metadata: { name: "hostile" },
    type: "Warning",
    reason: "Hostile",
    message: Object.values(HOSTILE).join(" "),
    involvedObject: { kind: "Deployment", name: "web", namespace, uid },
    lastTimestamp: new Date().toISOString(),
    count: 1,
  };
}

function deployment(name, script, replicas) {
  const labels = { app: name };
  const container = {
    name: "main",
    image: "busybox:1.35",
    imagePullPolicy: "Never",
    command: ["sh", "-c", script],
  };
  const spec = { terminationGracePeriodSeconds: 0, containers: [container] };
  return {
    apiVersion: "apps/v1",
    kind: "Deployment",
    metadata: { name, labels, annotations: { link: HOSTILE.link } },
    spec: { replicas, selector: { matchLabels: labels }, template: { metadata: { labels }, spec } },
  };
}

/** Starts `loadtest demo` with the cluster of KUBECONFIG, and objects for the tests of the page in a namespace. */

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { Prometheus } from "./prometheus.mjs";

const ROOT = new URL("../../../..", import.meta.url).pathname;
/** The directory of the programs, which may be others than those of `cargo build`: `E2E_PROGRAMS=target/release`. */
export const PROGRAMS = process.env.E2E_PROGRAMS ?? "target/debug";
const PROGRAM = join(ROOT, PROGRAMS, "loadtest");
const KAS = join(ROOT, PROGRAMS, "kas");
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
    /** The processes of agentk that were started again. */
    this.agents = [];
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

  /** Adds a caller of all agents to the identity file, and waits until kas knows it. Returns its token. */
  async addCaller(name, services = ["*"]) {
    const [, token, hash] = /token: (\S+)\nhash: +(\S+)/.exec(
      execFileSync(KAS, ["token", "new", "caller"], { encoding: "utf8" }),
    );
    const file = join(this.directory, "identity.yaml");
    const caller = `- {name: "${name}", tokens: ["${hash}"], agents: ["*"], services: ${JSON.stringify(services)}}\n`;
    writeFileSync(`${file}.new`, readFileSync(file, "utf8") + caller);
    renameSync(`${file}.new`, file);
    const login = { method: "POST", headers: { "Kas-Web": "1" }, body: JSON.stringify({ token }) };
    for (const end = Date.now() + START; ;) {
      const { status } = await fetch(`${this.address}/web/v1/session`, login);
      if (status === 204) return token;
      if (Date.now() > end) throw new Error(`kas does not accept the new caller: ${status}`);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  /** Ends the processes of agentk at once. Returns a function that starts them again. */
  killAgents() {
    const commands = this.agentCommands();
    for (const { pid } of commands) process.kill(pid, "SIGKILL");
    return () => {
      for (const command of commands) this.startAgent(command);
    };
  }

  /** Starts further processes of the agent `demo`, as a Deployment with more replicas would. */
  addAgents(count) {
    const found = this.agentCommands().find(({ command }) =>
      command.includes(join(this.directory, "agent-token")),
    );
    for (let index = 0; index < count; index += 1) this.startAgent(found);
  }

  agentCommands() {
    const pids = execFileSync("pgrep", ["--full", `agentk .*${this.directory}`], { encoding: "utf8" });
    return pids
      .trim()
      .split("\n")
      .map((pid) => {
        const fields = (name) => readFileSync(`/proc/${pid}/${name}`, "utf8").split("\0").slice(0, -1);
        const env = fields("environ").map((line) => line.match(/^([^=]*)=([^]*)$/).slice(1));
        return { pid: Number(pid), command: fields("cmdline"), env: Object.fromEntries(env) };
      });
  }

  startAgent({ command: [program, ...flags], env }) {
    this.agents.push(spawn(program, flags, { env, stdio: "ignore", cwd: ROOT }));
  }

  /** Waits until kas has at least so many tunnels of the agent `demo`. */
  async waitForTunnels(count) {
    const login = {
      method: "POST",
      headers: { "Kas-Web": "1" },
      body: JSON.stringify({ token: this.token }),
    };
    const { headers } = await fetch(`${this.address}/web/v1/session`, login);
    const cookie = headers.get("set-cookie").split(";")[0];
    for (const end = Date.now() + START; ;) {
      const response = await fetch(`${this.address}/web/v1/agents`, { headers: { "Kas-Web": "1", cookie } });
      const { agents } = await response.json();
      const { replicas } = agents.find(({ name }) => name === "demo");
      const instances = replicas.flatMap((replica) => replica.instances);
      const tunnels = instances.reduce((sum, instance) => sum + instance.tunnels, 0);
      if (tunnels >= count) return;
      if (Date.now() > end) throw new Error(`the agent has ${tunnels} tunnels`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill("SIGINT");
    await ended;
    for (const agent of this.agents) agent.kill("SIGKILL");
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
      kind: "Service",
      metadata: { name: "web", labels: { app: "web" } },
      spec: { selector: { app: "web" }, ports: [{ port: 80 }] },
    },
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

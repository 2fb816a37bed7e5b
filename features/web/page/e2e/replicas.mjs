/** Two replicas of kas that share a Redis, behind a load balancer, and agentk with the cluster of KUBECONFIG. */

import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { PROGRAMS } from "./demo.mjs";

const DIRECTORY = join(new URL("../../../..", import.meta.url).pathname, PROGRAMS);
/** The time in which a program has to start, in milliseconds. */
const START = 60_000;

export class Replicas {
  constructor(redis) {
    this.redis = redis;
    this.replicas = [];
    this.page = new LoadBalancer();
    this.agents = new LoadBalancer();
  }

  /** Starts the programs with the tokens of a demo. */
  static async start(demo) {
    const directory = join(demo.directory, "replicas");
    mkdirSync(directory);
    const socket = join(directory, "redis.sock");
    const redis = spawn("redis-server", ["--port", "0", "--save", "", "--unixsocket", socket], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const started = new Replicas(redis);
    try {
      await lineOf(redis, redis.stdout, (line) => /ready to accept connections/i.test(line));
      const file = join(demo.directory, "replica.yaml");
      // The replicas have the configuration of the demo, whose listeners have free ports.
      const shared = readFileSync(join(demo.directory, "kas.yaml"), "utf8");
      writeFileSync(file, shared + sections(socket));
      for (let count = 0; count < 2; count++) started.replicas.push(await Replica.start(file));
      started.page.targets = started.replicas.map((replica) => replica.page);
      started.agents.targets = started.replicas.map((replica) => replica.agents);
      started.address = `http://localhost:${await started.page.listen()}`;
      const arguments_ = [
        ...["--kas-address", `wss://127.0.0.1:${await started.agents.listen()}`],
        ...["--kas-ca-cert-file", join(demo.directory, "kas.crt")],
        ...["--token-file", join(demo.directory, "agent-token")],
        ...["--observability-listen-address", "127.0.0.1:0"],
      ];
      const environment = { ...process.env, POD_NAMESPACE: demo.namespace };
      started.agentk = spawn(join(DIRECTORY, "agentk"), arguments_, { env: environment, stdio: "ignore" });
      return started;
    } catch (error) {
      await started.stop();
      throw error;
    }
  }

  /** Kills the replica that serves the page, as the loss of its machine does. The load balancer takes the other one from now on. */
  async killFirst() {
    await end(this.replicas[0].process, "SIGKILL");
  }

  async stop() {
    this.page.close();
    this.agents.close();
    const processes = [this.agentk, ...this.replicas.map((replica) => replica.process), this.redis];
    for (const child of processes) if (child) await end(child, "SIGKILL");
  }
}

class Replica {
  static async start(file) {
    const child = spawn(join(DIRECTORY, "kas"), ["serve", "--config", file], {
      stdio: ["ignore", "ignore", "pipe"],
    });
    const line = await lineOf(child, child.stderr, (text) => text.includes('"kas is listening"'));
    const { web, agent } = JSON.parse(line);
    return { process: child, page: portOf(web), agents: portOf(agent) };
  }
}

/** Forwards each connection to the first target that accepts it. */
class LoadBalancer {
  targets = [];
  sockets = new Set();
  server = createServer((socket) => void this.forward(socket));

  /** Returns the port. */
  async listen() {
    await new Promise((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    return this.server.address().port;
  }

  async forward(socket) {
    this.sockets.add(socket);
    // The other end may be killed at any time.
    socket.on("error", () => undefined).on("close", () => this.sockets.delete(socket));
    for (const port of this.targets) {
      const target = await open(port);
      if (target === undefined) continue;
      target.on("error", () => undefined).on("close", () => socket.destroy());
      socket.on("close", () => target.destroy());
      socket.pipe(target).pipe(socket);
      return;
    }
    socket.destroy();
  }

  close() {
    this.server.close();
    for (const socket of this.sockets) socket.destroy();
  }
}

/** Connects to a port of this machine. Returns `undefined` if nothing listens there. */
function open(port) {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.once("connect", () => resolve(socket)).once("error", () => resolve(undefined));
  });
}

/** Waits until a program prints a line, and returns it. Later lines are discarded. */
function lineOf(child, output, isExpected) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${child.spawnfile} did not start`)), START);
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`${child.spawnfile} has ended with ${code}`)));
    createInterface({ input: output }).on("line", (line) => {
      if (!isExpected(line)) return;
      clearTimeout(timer);
      resolve(line);
    });
  });
}

async function end(child, signal) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill(signal);
  await ended;
}

function portOf(address) {
  return Number(/:(\d+)$/.exec(address)[1]);
}

/** The sections of a replica besides those of the demo. */
function sections(socket) {
  return `private_api: {listen: {address: "127.0.0.1:0", authentication_secret_file: peer-secret}}
redis: {server: {address: "unix:${socket}"}}
`;
}

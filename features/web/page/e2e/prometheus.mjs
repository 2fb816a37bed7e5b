/** A real Prometheus, which scrapes the metrics of simulated containers. */

import { spawn } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { createInterface } from "node:readline";

export class Prometheus {
  constructor(exporter, process, url) {
    this.exporter = exporter;
    this.process = process;
    this.url = url;
  }

  static async start(directory, namespace) {
    const exporter = createServer((_, response) => response.end(metrics(namespace)));
    await new Promise((resolve) => exporter.listen(0, "127.0.0.1", resolve));
    const target = `127.0.0.1:${exporter.address().port}`;
    mkdirSync(directory);
    const config = join(directory, "prometheus.yml");
    writeFileSync(
      config,
      `global: {scrape_interval: 1s}
scrape_configs: [{job_name: containers, honor_labels: true, static_configs: [{targets: ["${target}"]}]}]
`,
    );
    const process = spawn("prometheus", [
      `--config.file=${config}`,
      `--storage.tsdb.path=${join(directory, "data")}`,
      "--web.listen-address=127.0.0.1:0",
    ]);
    const address = await new Promise((resolve, reject) => {
      process.on("error", reject);
      process.on("exit", (code) => reject(new Error(`prometheus has ended with ${code}`)));
      createInterface({ input: process.stderr }).on("line", (line) => {
        const found = /"?Listening on"?.*address=(\S+)/.exec(line);
        if (found) resolve(found[1]);
      });
    });
    return new Prometheus(exporter, process, `http://${address}`);
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill("SIGTERM");
    await ended;
    this.exporter.close();
    this.exporter.closeAllConnections();
  }
}

function metrics(namespace) {
  const seconds = Date.now() / 1000 - 1.7e9;
  const pods = ["web-1", "web-2", "db-0"];
  return pods
    .flatMap((pod, index) => {
      const labels = `{namespace="${namespace}",pod="${pod}",container="main"}`;
      const wave = 1 + 0.5 * Math.sin(seconds / 5 + index);
      return [
        `container_cpu_usage_seconds_total${labels} ${seconds * 0.1 * (index + 1)}`,
        `container_memory_working_set_bytes${labels} ${5e7 * (index + 1) * wave}`,
        `container_network_receive_bytes_total${labels} ${seconds * 1000 * (index + 1)}`,
        `container_network_transmit_bytes_total${labels} ${seconds * 3000 * (index + 1)}`,
        `kube_pod_container_status_restarts_total${labels} ${Math.floor(seconds / 3) * index}`,
      ];
    })
    .map((line) => `${line}\n`)
    .join("");
}

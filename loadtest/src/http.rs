//! `loadtest http`, `bulk` and `upgrade`: load of short requests, of long responses, and of sessions as of exec.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::load::{Options, Plan, measure::measure, session::is_port_forward, target::TargetOptions};

/// Send requests and measure the latency of their responses
///
/// The first request is a check: if it fails, no other is sent. Ctrl-C ends the run with the report of the measurements so far.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HTTP_EXAMPLES)]
pub struct Http {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    options: Options,
    /// Open a new connection for each request
    #[arg(long, help_heading = "Load")]
    fresh: bool,
}

const HTTP_EXAMPLES: &str = "\
Examples:
  loadtest http https://kas.example.com:8154/agents/production/kubernetes/version --token-file token
  loadtest http URL --token-file token --rate 500 --duration 2m --json report.json --svg report.svg

Exit codes: 0 success, 1 requests failed (see --allow-errors), 2 invalid arguments";

impl Http {
    /// Runs for `--duration`, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let plan = Plan { fresh: self.fresh, ..self.options.plan() };
        measure("http", target, &plan, &self.options.output, stop).await
    }
}

/// The size of one read: large, so that this program does not limit the throughput.
pub const BUFFER: usize = 256 * 1024;

/// Download long bodies and measure megabytes per second
///
/// Each connection downloads again and again. Responses that are in flight at the end are finished but not counted.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = BULK_EXAMPLES, mut_arg("connections", |flag| flag.default_value("1")),
    mut_arg("timeout", |flag| flag.default_value("5m")))]
pub struct Bulk {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    options: Options,
}

const BULK_EXAMPLES: &str = "\
Example:
  loadtest bulk https://kas.example.com:8154/agents/production/kubernetes/api/v1/events --token-file token -c 4";

impl Bulk {
    /// Runs for `--duration`, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let plan = Plan { buffer: BUFFER, ..self.options.plan() };
        measure("bulk", target, &plan, &self.options.output, stop).await
    }
}

/// The maximum of `--echo`, in bytes.
const MAX_ECHO: i64 = 1 << 30;

/// Open WebSocket sessions as kubectl exec does, and measure them
///
/// Without --echo, sessions are opened and closed, and latency is the time from the connection to the status 101. With --echo,
/// sessions are kept, and latency is the time from the first byte sent to the last byte received.
///
/// Each session has its own connection, as in kubectl. A response with any other status than 101 is an error.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = UPGRADE_EXAMPLES, mut_arg("connections", |flag| flag.default_value("8")))]
pub struct Upgrade {
    #[command(flatten)]
    target: TargetOptions,
    /// WebSocket subprotocol; by default v5.channel.k8s.io, or v4.channel.k8s.io for port-forward
    #[arg(long, value_name = "PROTOCOL", help_heading = "Request")]
    subprotocol: Option<String>,
    /// Keep the sessions, send this many bytes, wait until they are echoed, and repeat: 1 measures keystrokes, 10000000
    /// measures throughput
    ///
    /// The URL must name an echo: a command such as cat with stdin and stdout and without a terminal, or a forwarded port
    /// with an echo server.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=MAX_ECHO),
        help_heading = "Load")]
    echo: Option<u32>,
    #[command(flatten)]
    options: Options,
}

const UPGRADE_EXAMPLES: &str = "\
Examples:
  POD=https://kas.example.com:8154/agents/production/kubernetes/api/v1/namespaces/demo/pods/web
  loadtest upgrade \"$POD/exec?command=true&stdout=true\" --token-file token --rate 20
  loadtest upgrade \"$POD/exec?command=cat&stdin=true&stdout=true\" --token-file token --echo 1 -c 8 --rate 80
  loadtest upgrade \"$POD/portforward?ports=7\" --token-file token --echo 10000000 -c 1";

impl Upgrade {
    /// Runs for `--duration`, or until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let ports = self.target.urls.first().is_some_and(|url| is_port_forward(url));
        let usual = if ports { "v4.channel.k8s.io" } else { "v5.channel.k8s.io" };
        let subprotocol = self.subprotocol.as_deref().unwrap_or(usual);
        let subprotocol = format!("Sec-WebSocket-Protocol: {subprotocol}");
        // The example key of RFC 6455 section 1.3. `Sec-WebSocket-Accept` is not checked.
        let fields = [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            &subprotocol,
        ];
        self.target.headers.extend(fields.map(str::to_owned));
        let target = Arc::new(self.target.build()?);
        let echo = self.echo.map(|bytes| bytes as usize);
        let plan = Plan { fresh: true, expected: Some(101), echo, ..self.options.plan() };
        measure("upgrade", target, &plan, &self.options.output, stop).await
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        upgrade: Upgrade,
    }

    #[test]
    fn defaults_are_bounded() {
        let upgrade = Line::try_parse_from(["x", "http://kas/exec"]).unwrap().upgrade;
        let plan = upgrade.options.plan();
        assert_eq!((plan.connections, plan.duration.as_secs()), (8, 30));
        for flag in ["--echo=0", "--echo=2000000000"] {
            assert!(Line::try_parse_from(["x", "http://kas/exec", flag]).is_err(), "{flag}");
        }
    }
}

//! `loadtest upgrade`: sessions like those of exec, attach and port-forward, opened and left, or kept and used.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{
    http::measure,
    load::{Options, Plan, session::is_port_forward, target::TargetOptions},
};

/// The most that is under way in one session.
const MAX_ECHO: i64 = 1 << 30;

/// Open WebSocket sessions and leave them, or keep them and measure how bytes travel
///
/// Latency is from the connection until 101, or with --echo from the first byte that is sent until the last is back.
/// Each session is of a connection of its own, as those of kubectl are; any other answer than 101 is an error.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("connections", |flag| flag.default_value("8")))]
pub struct Upgrade {
    #[command(flatten)]
    target: TargetOptions,
    /// What to speak then; v5.channel.k8s.io, or v4.channel.k8s.io for port-forward
    #[arg(long, value_name = "PROTOCOL", help_heading = "Request")]
    subprotocol: Option<String>,
    /// Keep the sessions, and send so many bytes again and again, each time when all of them have come back: 1 is a key
    /// that is pressed, 10000000 shows how many megabytes a second there are
    ///
    /// What the URL names must send back what it gets: a command like cat with stdin and stdout and without a terminal,
    /// or a forwarded port behind which somebody echoes.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=MAX_ECHO),
        help_heading = "Load")]
    echo: Option<u32>,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "\
Examples:
  POD=https://kas.example.com:8154/agents/production/kubernetes/api/v1/namespaces/demo/pods/web
  loadtest upgrade \"$POD/exec?command=true&stdout=true\" --token-file token --rate 20
  loadtest upgrade \"$POD/exec?command=cat&stdin=true&stdout=true\" --token-file token --echo 1 -c 8 --rate 80
  loadtest upgrade \"$POD/portforward?ports=7\" --token-file token --echo 10000000 -c 1";

impl Upgrade {
    /// Runs for its time, or until `stop`.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let ports = self.target.urls.first().is_some_and(|url| is_port_forward(url));
        let usual = if ports { "v4.channel.k8s.io" } else { "v5.channel.k8s.io" };
        let subprotocol = self.subprotocol.as_deref().unwrap_or(usual);
        let subprotocol = format!("Sec-WebSocket-Protocol: {subprotocol}");
        // The key is that of RFC 6455: nobody here checks what comes of it.
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
        measure("upgrade", target, &plan, &self.options.verdict, stop).await
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
    fn it_is_bounded_by_default() {
        let upgrade = Line::try_parse_from(["x", "http://kas/exec"]).unwrap().upgrade;
        let plan = upgrade.options.plan();
        assert_eq!((plan.connections, plan.duration.as_secs()), (8, 30));
        for flag in ["--echo=0", "--echo=2000000000"] {
            assert!(Line::try_parse_from(["x", "http://kas/exec", flag]).is_err(), "{flag}");
        }
    }
}

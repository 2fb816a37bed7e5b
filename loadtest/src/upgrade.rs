//! `loadtest upgrade`: sessions like those of exec, attach and port-forward, opened and left.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{
    http::measure,
    load::{Options, Plan, target::TargetOptions},
};

/// Open WebSocket sessions and leave them, as fast as they are accepted or at a rate
///
/// Latency is from the connection until 101. Each session is of a connection of its own, as those of kubectl are; any
/// other answer than 101 is an error.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("connections", |flag| flag.default_value("8")))]
pub struct Upgrade {
    #[command(flatten)]
    target: TargetOptions,
    /// What to speak then: v5.channel.k8s.io for exec and attach, v4.base64.channel.k8s.io, …
    #[arg(long, value_name = "PROTOCOL", default_value = "v5.channel.k8s.io", help_heading = "Request")]
    subprotocol: String,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "\
Example:
  loadtest upgrade --token-file token --rate 20 \\
    'https://kas.example.com:8154/agents/a/kubernetes/api/v1/namespaces/demo/pods/web/exec?command=true&stdout=true'";

impl Upgrade {
    /// Runs for its time, or until `stop`.
    pub async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let subprotocol = format!("Sec-WebSocket-Protocol: {}", self.subprotocol);
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
        let plan = Plan { fresh: true, expected: Some(101), ..self.options.plan() };
        measure("upgrade", target, &plan, &self.options.verdict, stop).await
    }
}

//! `loadtest bulk`: few requests with long responses.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{
    http::measure,
    load::{Options, Plan, target::TargetOptions},
};

/// The size of one read: large, so that this program does not limit the throughput.
pub const BUFFER: usize = 256 * 1024;

/// Download long bodies and measure megabytes per second
///
/// Each connection downloads again and again. Responses that are in flight at the end are finished but not counted.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("connections", |flag| flag.default_value("1")),
    mut_arg("timeout", |flag| flag.default_value("5m")))]
pub struct Bulk {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "\
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

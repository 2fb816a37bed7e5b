//! `loadtest bulk`: few answers, long ones.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{
    http::measure,
    load::{Options, Plan, target::TargetOptions},
};

/// What is read at once: a stream is to be limited by what sends it.
pub(crate) const BUFFER: usize = 256 * 1024;

/// Download long bodies and measure megabytes per second
///
/// Each connection downloads again and again. Answers that are under way at the end are finished, and not counted.
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
    /// Runs for its time, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let plan = Plan { buffer: BUFFER, ..self.options.plan() };
        measure("bulk", target, &plan, &self.options.verdict, stop).await
    }
}

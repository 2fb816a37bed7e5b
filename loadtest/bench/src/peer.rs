//! The cost of the second hop, if a request reaches a replica without a tunnel of the agent.

use std::{path::Path, sync::Arc};

use loadtest::{
    installation::stack::{StackConfig, redis::RedisProcess},
    load::{
        self, median,
        report::{Table, number},
    },
};
use tokio_util::sync::CancellationToken;

use crate::{
    candidate::Candidate,
    nginx::Nginx,
    replica_pair::ReplicaPair,
    rounds::Rounds,
    sample::{Case, Row},
};

/// Returns the cases. Few connections show the added latency, and many the cost.
pub(super) fn cases(quick: bool) -> Vec<Case> {
    let all = [
        ("200 B, one segment", "/one/200", &[1, 16, 64, 256][..]),
        ("4 KiB, two writes", "/two/4096", &[1, 64]),
        ("100 MB", "/bulk", &[1, 4]),
    ];
    let few = [("200 B, one segment", "/one/200", &[1, 64][..]), ("100 MB", "/bulk", &[1])];
    super::with_connections(if quick { &few[..] } else { &all[..] })
}

/// Returns a table with a row for each case: one hop beside two hops.
pub(super) fn table(rows: &[Row]) -> Table {
    let headings = [
        "what",
        "conns",
        "one hop /s",
        "through a peer /s",
        "× one hop",
        "one hop p50 ms",
        "added µs",
        "one hop kas µs",
        "through a peer kas µs",
    ];
    let mut table = Table::new(headings);
    for pair in rows.chunks_exact(2) {
        let (one, two) = (&pair[0], &pair[1]);
        let case = &one.case;
        let unit = if case.is_bulk() { " MB" } else { "" };
        let added = one.rounds.iter().zip(&two.rounds).map(|(one, two)| (two.p50_ms - one.p50_ms) * 1000.0);
        table.row([
            case.what.to_owned(),
            case.connections.to_string(),
            number(one.median.speed(case)) + unit,
            number(two.median.speed(case)) + unit,
            format!("{:.3}", two.to_direct),
            number(one.median.p50_ms),
            format!("{:.0}", median(added)),
            number(one.median.near_us),
            number(two.median.near_us),
        ]);
    }
    table
}

/// Measures every case at the owner and at the other replica. Without redis-server, prints that and returns no rows.
pub(super) async fn rows(
    work: &Path,
    upstream: &Nginx,
    rounds: Rounds,
    cases: Vec<Case>,
    stop: &CancellationToken,
) -> anyhow::Result<Vec<Row>> {
    if !RedisProcess::is_installed().await {
        load::print(
            &"not measured: through a peer, which needs redis-server (apt-get install redis-server)",
        )?;
        return Ok(Vec::new());
    }
    let pair = Arc::new(ReplicaPair::start(work, &StackConfig::default(), upstream).await?);
    let candidates = [Candidate::owner(&pair), Candidate::through_peer(&pair)];
    rounds.run(&candidates, &cases, stop).await
}

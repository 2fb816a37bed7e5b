//! Two replicas, of which one holds the agent: what it costs to ask the other.

use std::{path::Path, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::{
    contestant::Contestant,
    nginx::Nginx,
    rounds::{Case, Rounds},
    summary::{Row, median},
};
use crate::{
    load::table::{Table, number},
    stack::{Kas, Setup, child::Child, redis::Redis},
};

/// Both replicas, and what they share.
pub(super) struct Pair {
    /// It has all tunnels of the agent.
    pub(super) owner: Kas,
    /// It has none.
    pub(super) other: Kas,
    pub(super) agentk: Child,
    _redis: Redis,
}

impl Pair {
    /// Starts them.
    pub(super) async fn start(work: &Path, setup: &Setup, upstream: &Nginx) -> anyhow::Result<Self> {
        let directory = work.join("pair");
        let redis = Redis::start(&directory.join("redis")).await?;
        let setup = Setup { redis: Some(redis.address), ..setup.clone() };
        let owner = Kas::start(&directory, &setup).await?;
        let other = owner.another("kas-other", &setup).await?;
        let agentk = owner.agentk(&setup, upstream.address, "/one/200").await?;
        Ok(Self { owner, other, agentk, _redis: redis })
    }

    /// Asks its programs to stop, and waits until they have.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.agentk.stop().await?;
        self.other.stop().await?;
        self.owner.stop().await
    }
}

/// Few connections show what is added to one request, and many what it costs.
pub(super) fn cases(quick: bool) -> Vec<Case> {
    let all = [
        ("200 B, one segment", "/one/200", &[1, 16, 64, 256][..]),
        ("4 KiB, two writes", "/two/4096", &[1, 64]),
        ("100 MB", "/bulk", &[1, 4]),
    ];
    let few = [("200 B, one segment", "/one/200", &[1, 64][..]), ("100 MB", "/bulk", &[1])];
    super::each_level(if quick { &few[..] } else { &all[..] })
}

/// Each case in a row: one hop, and the other way beside it.
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

/// Every case by two ways, the owner first. Nothing where Redis is missing, which is said.
pub(super) async fn rows(
    work: &Path,
    upstream: &Nginx,
    rounds: Rounds,
    cases: Vec<Case>,
    stop: &CancellationToken,
) -> anyhow::Result<Vec<Row>> {
    if !Redis::is_installed().await {
        crate::say(&"not measured: through a peer, which needs redis-server (apt-get install redis-server)")?;
        return Ok(Vec::new());
    }
    let pair = Arc::new(Pair::start(work, &Setup::default(), upstream).await?);
    let contestants = [Contestant::owner(&pair), Contestant::through_peer(&pair)];
    rounds.run(&contestants, &cases, stop).await
}

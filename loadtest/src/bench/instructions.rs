//! Instructions of one request, counted by valgrind: a number that a busy machine does not change.
//!
//! Start and stop of the programs, and the warm-up, are in both of two runs; what is left of the difference is that of
//! the requests that only one of them had. What varies is when timers and threads wake, and how reads fall together.

use std::{fmt, path::Path};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{contestant::Contestant, nginx::Nginx};
use crate::{
    load::{client::Connection, options::write_json, progress::Counter},
    stack::Setup,
};

/// Requests of the shorter run, all over one connection.
const FEW: u64 = 1000;
/// Those of the longer one.
const MANY: u64 = 3000;
const PATH: &str = "/one/200";

/// For one request of 200 bytes.
#[derive(Clone, Copy, Debug, Serialize)]
struct Instructions {
    kas: u64,
    agentk: u64,
}

pub(super) async fn run(
    work: &Path,
    upstream: &Nginx,
    directory: &Path,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let both = async {
        let few = count(&work.join("few"), upstream, FEW).await?;
        let many = count(&work.join("many"), upstream, MANY).await?;
        let each = |few: u64, many: u64| many.saturating_sub(few) / (MANY - FEW);
        anyhow::Ok(Instructions { kas: each(few.kas, many.kas), agentk: each(few.agentk, many.agentk) })
    };
    let Some(measured) = stop.run_until_cancelled(both).await else { return Ok(()) };
    let measured = measured?;
    crate::say(&measured)?;
    write_json(&directory.join("instructions.json"), &measured)
}

/// Of a whole run.
async fn count(work: &Path, upstream: &Nginx, requests: u64) -> anyhow::Result<Instructions> {
    let setup = Setup { callgrind: true, ..Setup::default() };
    let contestant = Contestant::ours("kas", work, &setup, upstream).await?;
    let target = contestant.target(PATH)?;
    let mut connection = Connection::open(&target, 16 * 1024, Counter::default()).await?;
    for _ in 0..requests {
        let (head, _) = connection.exchange(&target.requests()[0]).await?;
        ensure!(head.status == 200, "status {}", head.status);
    }
    drop(connection);
    contestant.stop().await?;
    let read = |name: &str| {
        let path = work.join("kas").join(format!("{name}.callgrind"));
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("valgrind wrote no {}", path.display()))?;
        total(&text).with_context(|| format!("no total in {}", path.display()))
    };
    Ok(Instructions { kas: read("kas")?, agentk: read("agentk")? })
}

/// Of the whole program.
fn total(callgrind: &str) -> Option<u64> {
    let mut totals = callgrind.lines().filter_map(|line| line.strip_prefix("totals: "));
    totals.next_back()?.trim().parse().ok()
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instructions for each request of 200 bytes: kas {}, agentk {}", self.kas, self.agentk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_in_the_last_line_of_that_name() {
        assert_eq!(total("events: Ir\nfn=(1) main\n1 2\ntotals: 12345\n"), Some(12345));
        assert_eq!(total("events: Ir\n"), None);
    }
}

//! The instructions of one request, counted by valgrind: a number that other load on the machine hardly changes.
//!
//! Two runs differ only in their number of requests, so the difference of their counts excludes start, warm-up and stop.
//! The result still varies with the wake-ups of timers and threads, and with the number of reads.

use std::{fmt, path::Path};

use anyhow::{Context as _, ensure};
use loadtest::{
    installation::stack::{StackConfig, redis::RedisProcess},
    load::{self, LoadTarget, client::LoadConnection, options::write_json, progress::Counter},
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{candidate::Candidate, nginx::Nginx, replica_pair::ReplicaPair};

/// The number of requests of the shorter run, all over one connection.
const FEW: u64 = 500;
/// The number of requests of the longer run.
const MANY: u64 = 1500;
const PATH: &str = "/one/200";
/// The allowed growth in percent, which is more than the variation between runs.
const MAX_GROWTH: u64 = 5;

/// The instructions for one request with a response of 200 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Instructions {
    kas: u64,
    agentk: u64,
    /// The sum of both replicas if one forwards the request to the other; `None` without redis-server.
    #[serde(default)]
    two_kas: Option<u64>,
}

/// Counts the instructions and compares them with `before`. Growth above [`MAX_GROWTH`] is an error.
pub(super) async fn run(
    work: &Path,
    upstream: &Nginx,
    directory: &Path,
    before: Option<Instructions>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let both = async {
        let few = count(&work.join("few"), upstream, FEW).await?;
        let many = count(&work.join("many"), upstream, MANY).await?;
        let each = |few: u64, many: u64| many.saturating_sub(few) / (MANY - FEW);
        anyhow::Ok(Instructions {
            kas: each(few.kas, many.kas),
            agentk: each(few.agentk, many.agentk),
            two_kas: few.two_kas.zip(many.two_kas).map(|(few, many)| each(few, many)),
        })
    };
    let Some(measured) = stop.run_until_cancelled(both).await else { return Ok(()) };
    let measured = measured?;
    load::print(&measured)?;
    write_json(&directory.join("instructions.json"), &measured)?;
    let Some(before) = before else { return Ok(()) };
    load::print(&measured.against(before))?;
    let more = measured.grown(before);
    ensure!(
        more.is_empty(),
        "the instructions grew by more than {MAX_GROWTH} %: {}. Find the cause, or, if the growth is justified, record \
         the new figures with the reason (docs/performance.md)",
        more.join(", ")
    );
    Ok(())
}

/// Counts the instructions of a whole run.
async fn count(work: &Path, upstream: &Nginx, requests: u64) -> anyhow::Result<Instructions> {
    let setup = StackConfig { callgrind: true, ..StackConfig::default() };
    let candidate = Candidate::kas_and_agentk("kas", work, &setup, upstream).await?;
    send(&candidate.target(PATH)?, requests).await?;
    candidate.stop().await?;
    let [kas, agentk] = ["kas", "agentk"].map(|name| read(&work.join("kas"), name));
    let mut two_kas = None;
    if RedisProcess::is_installed().await {
        let pair = ReplicaPair::start(work, &setup, upstream).await?;
        send(&pair.other.target(PATH)?, requests).await?;
        pair.stop().await?;
        let [owner, other] = ["kas", "kas-other"].map(|name| read(&work.join("pair"), name));
        two_kas = Some(owner? + other?);
    }
    Ok(Instructions { kas: kas?, agentk: agentk?, two_kas })
}

async fn send(target: &LoadTarget, requests: u64) -> anyhow::Result<()> {
    let mut connection = LoadConnection::open(target, 16 * 1024, Counter::default()).await?;
    repeat(&mut connection, &target.requests()[0], requests).await
}

/// Sends a request again and again over one connection. Any status but 200 is an error.
pub(super) async fn repeat(
    connection: &mut LoadConnection,
    request: &[u8],
    requests: u64,
) -> anyhow::Result<()> {
    for _ in 0..requests {
        let (head, _) = connection.exchange(request).await?;
        ensure!(head.status == 200, "status {}", head.status);
    }
    Ok(())
}

/// Reads the instruction count that valgrind wrote for a program.
fn read(directory: &Path, name: &str) -> anyhow::Result<u64> {
    let path = directory.join(format!("{name}.callgrind"));
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("valgrind wrote no {}", path.display()))?;
    total(&text).with_context(|| format!("no total in {}", path.display()))
}

impl Instructions {
    /// Reads the file of a former run.
    pub(super) fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no instructions.json of a bench", file.display()))
    }

    /// Formats the difference.
    fn against(self, before: Self) -> String {
        let percent = |now: u64, before: u64| (now as f64 / before as f64 - 1.0) * 100.0;
        let [kas, agentk] = [percent(self.kas, before.kas), percent(self.agentk, before.agentk)];
        let mut text = format!(
            "before: kas {}, agentk {}; difference: kas {kas:+.1} %, agentk {agentk:+.1} %",
            before.kas, before.agentk
        );
        if let Some((now, before)) = self.two_kas.zip(before.two_kas) {
            text += &format!(", two kas {:+.1} %", percent(now, before));
        }
        text
    }

    /// Returns the programs whose growth exceeds [`MAX_GROWTH`].
    fn grown(self, before: Self) -> Vec<&'static str> {
        let both = [("kas", self.kas, before.kas), ("agentk", self.agentk, before.agentk)];
        let two = self.two_kas.zip(before.two_kas).map(|(now, before)| ("two kas", now, before));
        let grown =
            both.into_iter().chain(two).filter(|(_, now, before)| now * 100 > before * (100 + MAX_GROWTH));
        grown.map(|(name, ..)| name).collect()
    }
}

/// Parses the total of a callgrind file.
fn total(callgrind: &str) -> Option<u64> {
    let mut totals = callgrind.lines().filter_map(|line| line.strip_prefix("totals: "));
    totals.next_back()?.trim().parse().ok()
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instructions for each request of 200 bytes: kas {}, agentk {}", self.kas, self.agentk)?;
        match self.two_kas {
            Some(two) => write!(f, "; through a peer: both kas {two}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_the_last_totals_line() {
        assert_eq!(total("events: Ir\nfn=(1) main\n1 2\ntotals: 12345\n"), Some(12345));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn growth_above_the_limit_is_reported() {
        let before = Instructions { kas: 100_000, agentk: 50_000, two_kas: None };
        for (kas, agentk, grown) in [
            (100_000, 50_000, &[][..]),
            (105_000, 52_500, &[]),
            (50_000, 10_000, &[]),
            (105_001, 10_000, &["kas"]),
            (50_000, 52_501, &["agentk"]),
            (200_000, 100_000, &["kas", "agentk"]),
        ] {
            assert_eq!(Instructions { kas, agentk, two_kas: Some(1) }.grown(before), grown, "{kas} {agentk}");
        }
        let said = Instructions { kas: 102_000, agentk: 49_750, two_kas: Some(1) }.against(before);
        assert_eq!(said, "before: kas 100000, agentk 50000; difference: kas +2.0 %, agentk -0.5 %");
        let two = |two_kas| Instructions { two_kas, ..before };
        assert_eq!(two(Some(106_000)).grown(two(Some(100_000))), ["two kas"]);
        assert!(two(Some(106_000)).against(two(Some(100_000))).ends_with(", two kas +6.0 %"));
        // Any count is growth over zero.
        assert_eq!(before.grown(Instructions { kas: 0, agentk: 0, two_kas: None }), ["kas", "agentk"]);
    }

    #[test]
    fn written_instructions_are_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("instructions.json");
        let missing = Instructions::read(&file).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read "), "{missing}");
        let written = Instructions { kas: 1, agentk: 2, two_kas: None };
        write_json(&file, &written).unwrap();
        assert_eq!(Instructions::read(&file).unwrap(), written);
        std::fs::write(&file, "{}").unwrap();
        assert!(
            Instructions::read(&file)
                .unwrap_err()
                .to_string()
                .ends_with("is no instructions.json of a bench")
        );
    }
}

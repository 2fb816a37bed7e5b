//! `loadtest storm`: everybody comes back at once.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    fleet::{Arrival, Crowd, Fleet},
    load::{options::write_json, table::Table, target::read_token},
    stack::{Kas, Setup, free_port},
};

/// Kill a kas with many agents, start it again, and see how long until they are back
///
/// kas is started by this program on this machine, with embedded defaults. The agents wait as agentk does: the time
/// is mostly theirs (½ to 1 of 0.5 s, 1 s, 2 s, … 20 s).
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  loadtest storm --count 2000 --outage 3s")]
pub struct Storm {
    /// How many agents
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    count: u32,
    /// How long kas is away
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = proto::duration::parse)]
    outage: Duration,
    /// How long they may take to be back
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = proto::duration::parse)]
    timeout: Duration,
    /// With TLS
    #[arg(long)]
    tls: bool,
    /// Write the report as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What it came to.
#[derive(Clone, Copy, Debug, Serialize)]
struct Report {
    count: u32,
    outage_seconds: f64,
    tls: bool,
    /// Whether it was stopped before its end.
    interrupted: bool,
    first: Arrival,
    /// `null` if it was stopped before kas was back.
    back: Option<Arrival>,
}

impl Storm {
    /// Runs to the end, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let setup = Setup { tls: self.tls, agent_port: free_port()?, ..Setup::default() };
        let starting = Kas::start(directory.path(), &setup);
        let Some(kas) = stop.run_until_cancelled(starting).await.transpose()? else { return Ok(()) };
        let scheme = if self.tls { "wss" } else { "ws" };
        let crowd = Crowd {
            kas: format!("{scheme}://{}", kas.agents).parse()?,
            cacert: self.tls.then(|| directory.path().join("kas.crt")),
            tokens: vec![read_token(&kas.agent_token())?],
            count: self.count as usize,
            per_second: f64::INFINITY,
            answer: 200,
        };
        let begin = Instant::now();
        let fleet = crowd.start()?;
        let first = fleet.arrive(begin, self.timeout, &stop).await;
        ensure!(
            first.all.is_some() || stop.is_cancelled(),
            "{} of {} tunnels came up: {}",
            first.up,
            self.count,
            fleet.last_failure().as_deref().unwrap_or("no failure was seen")
        );
        crate::say(&format!("{} tunnels are up; kas is killed now, and comes back later", first.up))?;
        let outage = self.outage(kas, directory.path(), &setup, &fleet);
        let kas = stop.run_until_cancelled(outage).await.transpose()?;
        let back = match &kas {
            Some(_) => Some(fleet.arrive(Instant::now(), self.timeout, &stop).await),
            None => None,
        };
        fleet.stop().await;

        let report = Report {
            count: self.count,
            outage_seconds: self.outage.as_secs_f64(),
            tls: self.tls,
            interrupted: stop.is_cancelled(),
            first,
            back,
        };
        self.tell(&report)?;
        let back = back.unwrap_or_default();
        let all = back.all.is_some() || report.interrupted;
        ensure!(all, "{} of {} tunnels were back in time", back.up, self.count);
        Ok(())
    }

    /// From the end of one kas to the beginning of the next.
    async fn outage(&self, kas: Kas, directory: &Path, setup: &Setup, fleet: &Fleet) -> anyhow::Result<Kas> {
        kas.kill().await?;
        ensure!(fleet.lost(self.timeout).await, "some agents did not notice that kas is gone");
        sleep(self.outage).await;
        Kas::start(directory, setup).await.context("kas did not start again")
    }

    fn tell(&self, report: &Report) -> anyhow::Result<()> {
        let mut table = Table::new(["", "tunnels", "half s", "95 % s", "all s"]);
        let back = report.back.map(|arrival| ("back", arrival));
        for (name, arrival) in [("first", report.first)].into_iter().chain(back) {
            let [half, most, all] = [arrival.half, arrival.most, arrival.all]
                .map(|seconds| seconds.map_or_else(|| "never".to_owned(), |s| format!("{s:.2}")));
            table.row([name.to_owned(), arrival.up.to_string(), half, most, all]);
        }
        crate::say(&table)?;
        if report.interrupted {
            crate::say(&"stopped early")?;
        }
        if let Some(file) = &self.json {
            write_json(file, report)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        storm: Storm,
    }

    #[test]
    fn it_is_bounded_by_default() {
        let storm = Line::try_parse_from(["x"]).unwrap().storm;
        assert_eq!((storm.count, storm.outage.as_secs(), storm.timeout.as_secs()), (1000, 3, 60));
        for flags in ["--count=0", "--count=50001", "--outage=3", "--timeout=x"] {
            assert!(Line::try_parse_from(["x", flags]).is_err(), "{flags}");
        }
    }
}

//! `loadtest storm`: everybody comes back at once.

mod replicas;
mod timeline;

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

/// Kill a kas with many agents, and see how long until they are back
///
/// One that is alone is started again; of several (--replicas, which needs redis-server) the others take its agents. They are
/// started by this program on this machine, with embedded defaults. The agents wait as agentk does: the time is mostly
/// theirs (½ to 1 of 0.5 s, 1 s, 2 s, … 20 s).
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Storm {
    /// How many agents
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    count: u32,
    /// How many tunnels each of them has; 1, or 2 with several replicas
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=16))]
    tunnels: Option<u16>,
    /// How many replicas of kas there are
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10))]
    replicas: u16,
    /// Of several replicas: how many tunnels each takes in a second (agent.listen.connections_per_second)
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Of several replicas: until when the load balancer sends agents to the one that was killed
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = proto::duration::parse)]
    notice: Duration,
    /// How long a kas that is alone is away
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

const EXAMPLES: &str = "\
Examples:
  loadtest storm --count 2000 --outage 3s
  loadtest storm --count 2000 --replicas 2";

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
        if self.replicas > 1 {
            return replicas::run(&self, directory.path(), &stop).await;
        }
        let setup = Setup { tls: self.tls.into(), agent_port: free_port()?, ..Setup::default() };
        let starting = Kas::start(directory.path(), &setup);
        let Some(kas) = stop.run_until_cancelled(starting).await.transpose()? else { return Ok(()) };
        let crowd = Crowd {
            kas: vec![kas.agent_address()?],
            cacert: self.tls.then(|| directory.path().join("kas.crt")),
            tokens: vec![read_token(&kas.agent_token())?],
            count: self.count as usize,
            tunnels: self.tunnels(),
            per_second: f64::INFINITY,
            answer: 200,
        };
        let (begin, count) = (Instant::now(), crowd.count * usize::from(crowd.tunnels));
        let fleet = crowd.start()?;
        let first = fleet.arrive(begin, self.timeout, &stop).await;
        ensure!(
            first.all.is_some() || stop.is_cancelled(),
            "{} of {count} tunnels came up: {}",
            first.up,
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
        ensure!(all, "{} of {count} tunnels were back in time", back.up);
        Ok(())
    }

    fn tunnels(&self) -> u16 {
        self.tunnels.unwrap_or(if self.replicas > 1 { 2 } else { 1 })
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
        assert_eq!((storm.replicas, storm.tunnels()), (1, 1));
        let several = Line::try_parse_from(["x", "--replicas=2"]).unwrap().storm;
        assert_eq!((several.tunnels(), several.rate, several.notice.as_secs()), (2, 1000, 1));
        for flags in [
            "--replicas=0",
            "--replicas=11",
            "--rate=0",
            "--tunnels=17",
            "--count=0",
            "--count=50001",
            "--outage=3",
            "--timeout=x",
        ] {
            assert!(Line::try_parse_from(["x", flags]).is_err(), "{flags}");
        }
    }
}

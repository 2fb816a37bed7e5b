//! Rounds of measurements. Each case runs with every candidate before it runs again, so that other load on the machine
//! affects all of them, and ratios are computed within one round.

use std::{sync::Arc, time::Duration};

use loadtest::{
    http::BUFFER,
    installation::stack::process,
    load::{
        Plan, Tally,
        progress::{Counter, StatusLine, bar},
    },
};
use tokio_util::sync::CancellationToken;

use crate::{
    candidate::Candidate,
    sample::{self, Case, Row, Sample, Samples},
};

/// The number and the duration of the rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    pub(super) repeats: u32,
    pub(super) duration: Duration,
}

impl Rounds {
    /// Runs every case with every candidate. The others are compared with the first candidate. After `stop` is cancelled, the
    /// rows contain the complete rounds.
    pub(super) async fn run(
        &self,
        candidates: &[Candidate],
        cases: &[Case],
        stop: &CancellationToken,
    ) -> anyhow::Result<Vec<Row>> {
        for candidate in candidates {
            candidate.ready().await?;
        }
        let none = || candidates.iter().map(Samples::none).collect::<Vec<_>>();
        let mut samples: Vec<_> = cases.iter().map(|case| (*case, none())).collect();
        let (mut done, all) = (0, u64::from(self.repeats) * cases.len() as u64);
        let line = StatusLine::default();
        'all: for _ in 0..self.repeats {
            for (case, of_case) in &mut samples {
                for (candidate, samples) in candidates.iter().zip(of_case) {
                    let (sample, tally) = sample(candidate, case, self.duration, stop).await?;
                    // An interrupted measurement is discarded.
                    if stop.is_cancelled() {
                        break 'all;
                    }
                    samples.add(sample, tally);
                }
                done += 1;
                line.show(&format!("{} {done}/{all}", bar(done, all)));
            }
        }
        line.clear();
        Ok(samples.iter().flat_map(|(case, of_case)| sample::rows(*case, of_case)).collect())
    }
}

/// Measures one candidate once.
async fn sample(
    candidate: &Candidate,
    case: &Case,
    duration: Duration,
    stop: &CancellationToken,
) -> anyhow::Result<(Sample, Tally)> {
    let plan = Plan {
        connections: case.connections,
        duration,
        warm_up: duration / 4,
        // One thread, as with wrk -t1: the other cores are for the measured programs.
        threads: 1,
        buffer: if case.is_bulk() { BUFFER } else { Plan::default().buffer },
        ..Plan::default()
    };
    let target = Arc::new(candidate.target(case.path)?);
    let (near, far) = candidate.processes();
    let cpu = || [&near, &far].map(|pids| pids.iter().map(|pid| process::cpu(*pid)).sum());
    let before: [anyhow::Result<Duration>; 2] = cpu();
    let counter = Counter::default();
    let tally = plan.run(target, counter.clone(), stop.clone()).await?;
    let after = cpu();

    // Includes the warm-up: CPU time cannot be read at the exact moment when it ends.
    let units = if case.is_bulk() { counter.bytes() as f64 / 1e6 } else { counter.answers() as f64 };
    let mut used = [0.0; 2];
    for ((used, before), after) in used.iter_mut().zip(before).zip(after) {
        *used = (after? - before?).as_secs_f64() * 1e6 / units;
    }
    let sample = Sample {
        per_second: tally.in_time as f64 / duration.as_secs_f64(),
        megabytes_per_second: tally.bytes as f64 / duration.as_secs_f64() / 1e6,
        p50_ms: tally.quantile(0.5),
        p99_ms: tally.quantile(0.99),
        near_us: used[0],
        far_us: used[1],
        errors: tally.errors(),
    };
    Ok((sample, tally))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_matches_text_or_connections() {
        let case = Case { what: "200 B, two writes", path: "/two/200", connections: 64 };
        assert!(["two writes", "200 B", "64"].iter().all(|word| case.is_about(word)));
        assert!(!["6", "4", "one segment", "100 MB"].iter().any(|word| case.is_about(word)));
    }
}

//! The followed files whose last version was refused, for probes, metrics and the log.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use process::LogLimiter;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use tokio::time::Instant;

/// Period in which at most one refusal of a file is logged.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Longest reason in [`ReloadHealth::problems`], in characters.
const MAX_REASON: usize = 500;

/// The files that a program follows. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ReloadHealth {
    refused_since: Family<FileLabel, Gauge>,
    refusals: Arc<Mutex<BTreeMap<String, Refusal>>>,
}

/// One followed file.
#[derive(Clone, Debug)]
pub struct WatchedFile {
    key: String,
    health: ReloadHealth,
    gauge: Gauge,
    log_limiter: Arc<LogLimiter<()>>,
}

#[derive(Clone, Debug)]
struct Refusal {
    since: SystemTime,
    why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabel {
    file: String,
}

impl ReloadHealth {
    /// Registers `<program>_file_refused_since_timestamp_seconds`.
    pub fn register(&self, registry: &mut Registry, program: &str) {
        registry.register_with_unit(
            format!("{program}_file_refused_since_timestamp"),
            "Time since which the newest version of a file is refused, as Unix time; 0 if it is in use",
            Unit::Seconds,
            self.refused_since.clone(),
        );
    }

    /// Adds a file by its configuration key or flag, which names it in metrics and messages.
    pub fn file(&self, key: impl Into<String>) -> WatchedFile {
        let key = key.into();
        let gauge = self.refused_since.get_or_create(&FileLabel { file: key.clone() }).clone();
        WatchedFile { key, health: self.clone(), gauge, log_limiter: Arc::new(LogLimiter::new(LOG_PERIOD)) }
    }

    /// Returns a line for each file whose newest version is refused.
    pub fn problems(&self) -> Vec<String> {
        let line = |(key, Refusal { since, why }): (&String, &Refusal)| {
            let since = humantime::format_rfc3339_seconds(*since);
            format!("{key} since {since}: the newest version is refused: {why}")
        };
        self.refusals.lock().iter().map(line).collect()
    }
}

impl WatchedFile {
    /// Returns the configuration key or flag that names the file.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Records that the version on disk is in use.
    pub fn set_accepted(&self) {
        self.gauge.set(0);
        self.health.refusals.lock().remove(&self.key);
    }

    /// Records that the newest version is refused. Returns whether to log that now.
    pub fn set_refused(&self, why: &str, at: SystemTime, now: Instant) -> bool {
        let why = why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_REASON).collect();
        let mut refusals = self.health.refusals.lock();
        let since = refusals.get(&self.key).map_or(at, |refusal| refusal.since);
        refusals.insert(self.key.clone(), Refusal { since, why });
        let unix = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.gauge.set(unix.cast_signed());
        self.log_limiter.admit((), now.into_std()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn metrics(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn refusal_is_a_problem_and_a_metric_until_a_version_is_accepted() {
        let (mut registry, health) = (Registry::default(), ReloadHealth::default());
        health.register(&mut registry, "kas");
        let file = health.file("identity.file");
        let gauge = "kas_file_refused_since_timestamp_seconds{file=\"identity.file\"}";
        assert!(metrics(&registry).contains(&format!("{gauge} 0\n")), "{}", metrics(&registry));
        assert!(health.problems().is_empty());

        let (at, now) = (SystemTime::UNIX_EPOCH + Duration::from_secs(60), Instant::now());
        file.set_refused("id.yaml: a\nb", at, now);
        file.set_refused("id.yaml: c", at + Duration::from_secs(9), now);
        let problem = "identity.file since 1970-01-01T00:01:00Z: the newest version is refused: id.yaml: c";
        assert_eq!(health.problems(), [problem]);
        assert!(metrics(&registry).contains(&format!("{gauge} 60\n")), "{}", metrics(&registry));

        file.set_accepted();
        assert!(health.problems().is_empty());
        assert!(metrics(&registry).contains(&format!("{gauge} 0\n")), "{}", metrics(&registry));
    }

    #[test]
    fn refusal_is_one_line_of_bounded_length() {
        let health = ReloadHealth::default();
        let why = format!("first\nsecond {}", "x".repeat(10_000));
        health.file("f").set_refused(&why, SystemTime::now(), Instant::now());
        let problems = health.problems();
        assert!(problems[0].contains(": first second xxx") && problems[0].len() < 700, "{problems:?}");
    }

    #[test]
    fn refusals_are_logged_once_a_minute_even_if_versions_are_accepted_between_them() {
        let (file, at, start) =
            (ReloadHealth::default().file("identity.file"), SystemTime::now(), Instant::now());
        for second in 0..180 {
            let logged = file.set_refused("bad", at, start + Duration::from_secs(second));
            assert_eq!(logged, second % 60 == 0, "{second}");
            if second % 2 == 0 {
                file.set_accepted();
            }
        }
    }
}

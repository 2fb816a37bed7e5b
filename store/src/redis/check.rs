//! Tests a Redis for `kas check-config --live`, without joining the other replicas.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use proto::ReplicaId;
use tokio::time::{Instant, timeout};

use super::{
    RedisCheckError, RedisState, RedisStore, RedisStoreError,
    client::{RedisConnection, connect},
    wire::{Heartbeat, RedisEvent, RedisEventKind},
};
use crate::routes::Replica;

/// The oldest supported version of Redis.
const MIN_VERSION: (u32, u32) = (6, 2);

/// The result of [`RedisStore::check`].
#[derive(Debug, Default)]
pub struct RedisReport {
    /// The checks in their order. A failure that makes the next ones impossible is the last.
    pub checks: Vec<RedisCheck>,
    /// The live replicas that use this Redis.
    pub replicas: Vec<Replica>,
}

/// One check of a Redis.
#[derive(Debug)]
pub struct RedisCheck {
    /// The name of the check.
    pub name: &'static str,
    /// The observation or the error, in one line.
    pub result: Result<String, RedisCheckError>,
}

impl RedisStore {
    /// Tries everything that a replica does with Redis. It leaves nothing behind, and other replicas do not notice it.
    pub async fn check(&self) -> RedisReport {
        let mut report = RedisReport::default();
        if let Err(error) = self.0.run_checks(&mut report).await {
            report.add("redis", Err(error.into()));
        }
        report
    }
}

impl RedisReport {
    fn add(&mut self, name: &'static str, result: Result<String, RedisCheckError>) {
        self.checks.push(RedisCheck { name, result });
    }
}

impl RedisState {
    /// Adds the checks to the report. The error is that of the check `redis`, after which no other is possible.
    async fn run_checks(&self, report: &mut RedisReport) -> Result<(), RedisStoreError> {
        let start = Instant::now();
        let (connection, events) = connect(&self.settings, &self.keys.events()).await?;
        let elapsed = start.elapsed();
        let output = self.try_commands(&connection).await?;
        let (info, failed) = output.split_first().map_or(("", &[][..]), |(info, failed)| (info, failed));
        report.add("redis", check_version(info, elapsed));
        let commands = match failed {
            [] => self.try_rate_limit(&connection).await,
            [first, ..] => Err(RedisCheckError::Commands { count: failed.len(), first: first.clone() }),
        };
        report.add("redis commands", commands);
        report.add("redis events", self.receive_own_event(events).await);
        match self.read_members(&connection).await {
            Ok((live, _)) => {
                report.add("redis fleet", self.check_fleet(&live));
                let replicas = live.into_iter().map(|(id, heartbeat)| Replica { id, url: heartbeat.url });
                report.replicas = replicas.collect();
            }
            Err(error) => report.add("redis fleet", Err(error.into())),
        }
        Ok(())
    }

    /// Runs every command of the other scripts, and publishes an event. Returns the output of INFO and the errors.
    async fn try_commands(&self, connection: &RedisConnection) -> Result<Vec<String>, RedisStoreError> {
        // Other replicas ignore the event, because they have received no heartbeat of this replica.
        let kind = RedisEventKind::Changed(Vec::new());
        let event = RedisEvent { replica: self.replica, generation: 0, sequence: 0, kind };
        let mut script = self.scripts.check.key(self.keys.check(self.replica));
        script.arg(self.keys.events()).arg(event.encode());
        connection.run(&script, &self.metrics).await
    }

    async fn try_rate_limit(&self, connection: &RedisConnection) -> Result<String, RedisCheckError> {
        let mut script = self.scripts.admit.key(self.keys.limit(&self.replica.to_string()));
        let (interval, burst) = (1, 1_000_000);
        script.arg(interval).arg(burst);
        let _: (usize, u64) = connection.run(&script, &self.metrics).await?;
        Ok("kas may run every command that it needs".to_owned())
    }

    async fn receive_own_event(
        &self,
        mut events: impl Stream<Item = Vec<u8>> + Unpin,
    ) -> Result<String, RedisCheckError> {
        let is_own = |text: &[u8]| RedisEvent::decode(text).is_ok_and(|event| event.replica == self.replica);
        let received = async {
            while let Some(text) = events.next().await {
                if is_own(&text) {
                    return true;
                }
            }
            false
        };
        match timeout(self.settings.response_timeout, received).await {
            Ok(true) => Ok("kas receives the events that it publishes".to_owned()),
            Ok(false) => Err(RedisCheckError::EventsClosed),
            Err(_) => Err(RedisCheckError::NoEvents),
        }
    }

    fn check_fleet(&self, live: &[(ReplicaId, Heartbeat)]) -> Result<String, RedisCheckError> {
        let fleet = &self.settings.fleet;
        match live.iter().find(|(_, heartbeat)| heartbeat.fleet != *fleet) {
            Some((_, other)) => Err(self.fleet_conflict(other).into()),
            None => Ok(format!("{} live replicas of {fleet:?}", live.len())),
        }
    }
}

/// Checks the version in the output of INFO, which is empty if kas may not run it.
fn check_version(info: &str, elapsed: Duration) -> Result<String, RedisCheckError> {
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().chars().filter(|c| c.is_ascii_graphic()).take(32).collect::<String>())
    };
    let connected = format!("connected in {:.1} ms", elapsed.as_secs_f64() * 1000.0);
    let Some(version) = field("redis_version") else {
        return Ok(format!("{connected}; its version is unknown, because kas may not run INFO"));
    };
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if number < MIN_VERSION {
        return Err(RedisCheckError::OldVersion(version));
    }
    let name = field("valkey_version").map_or_else(|| format!("Redis {version}"), |v| format!("Valkey {v}"));
    Ok(format!("{name}, {connected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_version_is_refused_and_unknown_version_is_not() {
        let check = |info: &str| check_version(info, Duration::from_micros(1234));
        assert_eq!(
            check("# Server\r\nredis_version:7.0.15\r\n").unwrap(),
            "Redis 7.0.15, connected in 1.2 ms"
        );
        let valkey = check("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n");
        assert!(valkey.unwrap().starts_with("Valkey 8.1.0"));
        assert!(check("redis_version:6.0.16\r\n").unwrap_err().to_string().contains("requires 6.2"));
        assert!(check("redis_version:\u{1b}[31m").unwrap_err().to_string().contains("Redis [31m"));
        assert!(check("").unwrap().contains("its version is unknown"));
    }
}

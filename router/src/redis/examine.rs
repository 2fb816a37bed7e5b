//! Whether Redis will do, tried out without joining the others: for `kas check-config --live`.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use tokio::time::{Instant, timeout};

use super::{
    RedisStore, Shared,
    link::{Link, connect},
    wire::{Event, News},
};
use crate::{limit::Pace, store::Replica};

/// The oldest that will do.
const LEAST_VERSION: (u32, u32) = (6, 2);

/// What was found.
#[derive(Debug, Default)]
pub struct Examination {
    /// One after the other, until one makes the next impossible.
    pub findings: Vec<Finding>,
    /// Who lives.
    pub replicas: Vec<Replica>,
}

/// One thing that was tried out.
#[derive(Debug)]
pub struct Finding {
    /// What.
    pub what: &'static str,
    /// How it went, in a line.
    pub result: Result<String, String>,
}

impl RedisStore {
    /// Tries everything that a replica does. Leaves nothing behind, and other replicas notice nothing.
    pub async fn examine(&self) -> Examination {
        let (shared, mut examination) = (&*self.0, Examination::default());
        let mut find = |what, result| examination.findings.push(Finding { what, result });
        let start = Instant::now();
        let (link, events) = match connect(&shared.settings, &shared.keys.events()).await {
            Ok(connected) => connected,
            Err(why) => {
                find("redis", Err(why));
                return examination;
            }
        };
        let took = start.elapsed();
        let said = match shared.try_commands(&link).await {
            Ok(said) => said,
            Err(why) => {
                find("redis", Err(why));
                return examination;
            }
        };
        let (info, denied) = said.split_first().map_or(("", &[][..]), |(info, denied)| (info, denied));
        find("redis", version(info, took));
        find(
            "redis commands",
            match denied {
                [] => shared.try_limit(&link).await,
                [first, ..] => Err(format!("{} of them fail, the first is {first}", denied.len())),
            },
        );
        find("redis events", shared.hears_itself(events).await);
        match shared.members(&link).await {
            Ok((living, _)) => {
                find("redis fleet", shared.judge_fleet(&living));
                let replica = |(id, beat): (_, super::Heartbeat)| Replica { id, url: beat.url };
                examination.replicas = living.into_iter().map(replica).collect();
            }
            Err(why) => find("redis fleet", Err(why)),
        }
        examination
    }
}

impl Shared {
    async fn try_commands(&self, link: &Link) -> Result<Vec<String>, String> {
        // Of a replica that nobody knows: it means nothing to them.
        let event = Event { from: self.me, generation: 0, sequence: 0, news: News::Changed(Vec::new()) };
        let mut script = self.scripts.check.key(self.keys.check(self.me));
        script.arg(self.keys.events()).arg(event.encode());
        link.run(&script, &self.counts).await
    }

    async fn try_limit(&self, link: &Link) -> Result<String, String> {
        let Pace { cost, credit } = Pace { cost: 1, credit: 1_000_000 };
        let mut script = self.scripts.admit.key(self.keys.limit(&self.me.to_string()));
        script.arg(cost).arg(credit);
        let _: u64 = link.run(&script, &self.counts).await?;
        Ok("kas may run all that it needs".to_owned())
    }

    async fn hears_itself(&self, mut events: impl Stream<Item = Vec<u8>> + Unpin) -> Result<String, String> {
        let ours = |text: &[u8]| Event::decode(text).is_ok_and(|event| event.from == self.me);
        let heard = async {
            while let Some(text) = events.next().await {
                if ours(&text) {
                    return true;
                }
            }
            false
        };
        match timeout(self.settings.response_timeout, heard).await {
            Ok(true) => Ok("what kas publishes arrives".to_owned()),
            Ok(false) => Err("Redis closed the connection for events".to_owned()),
            Err(_) => {
                Err("what kas publishes does not arrive: are events kept apart from commands?".to_owned())
            }
        }
    }

    fn judge_fleet(&self, living: &[(proto::ReplicaId, super::Heartbeat)]) -> Result<String, String> {
        let fleet = &self.settings.fleet;
        match living.iter().find(|(_, beat)| beat.fleet != *fleet) {
            Some((_, other)) => Err(self.foreign(other)),
            None => Ok(format!("{} live replicas of {fleet:?}", living.len())),
        }
    }
}

fn version(info: &str, took: Duration) -> Result<String, String> {
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().chars().filter(|c| c.is_ascii_graphic()).take(32).collect::<String>())
    };
    let took = format!("connected in {:.1} ms", took.as_secs_f64() * 1000.0);
    let Some(version) = field("redis_version") else {
        return Ok(format!("{took}; its version is unknown, because kas may not ask (INFO)"));
    };
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if number < LEAST_VERSION {
        return Err(format!("it is Redis {version}, and kas needs 6.2 or newer"));
    }
    let name = field("valkey_version").map_or_else(|| format!("Redis {version}"), |v| format!("Valkey {v}"));
    Ok(format!("{name}, {took}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused_and_unknown_ones_are_not() {
        let said = |info: &str| version(info, Duration::from_micros(1234));
        assert_eq!(
            said("# Server\r\nredis_version:7.0.15\r\n").unwrap(),
            "Redis 7.0.15, connected in 1.2 ms"
        );
        let valkey = said("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n");
        assert!(valkey.unwrap().starts_with("Valkey 8.1.0"));
        assert!(said("redis_version:6.0.16\r\n").unwrap_err().contains("needs 6.2"));
        assert!(said("redis_version:\u{1b}[31m").unwrap_err().contains("Redis [31m"));
        assert!(said("").unwrap().contains("its version is unknown"));
    }
}

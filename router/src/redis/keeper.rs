//! The task that talks to Redis: connects, says what this replica holds and that it lives, hears the others.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{Stream, StreamExt as _};
use proto::{AgentId, ReplicaId};
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval_at, sleep, timeout},
};

use super::{
    Line, Shared,
    keys::{BEAT, BEATS_PER_AUDIT, GONE_LIFE, LIFE, ROUTES_LIFE},
    link::{Link, connect},
    members::{MAX_REPLICAS, Meaning},
    wire::{Event, Heartbeat, MAX_RECORD, News, seconds},
};
use crate::store::Health;

/// Most agents that are written at once: some 100 KB, or a millisecond of Redis.
const BATCH: usize = 500;
/// The first wait for another connection, doubled with each that fails.
const LEAST_WAIT: Duration = Duration::from_millis(100);
/// The longest.
const MOST_WAIT: Duration = Duration::from_secs(5);

/// Keeps Redis and the store of one mind, for as long as it runs.
#[derive(Debug)]
#[must_use = "the store talks to Redis only while its keeper runs"]
pub struct Keeper {
    shared: Arc<Shared>,
    generation: u64,
    sequence: u64,
    beats: u64,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, generation: 0, sequence: 0, beats: 0 }
    }

    /// Runs until `stop` completes; then Redis is told that this replica is gone.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            () = self.keep() => {}
            () = stop => {}
        }
        if let Ok(line) = shared.line() {
            _ = timeout(shared.settings.response_timeout, self.leave(&line.link)).await;
        }
    }

    async fn keep(&mut self) {
        let mut wait = LEAST_WAIT;
        loop {
            let joined = match self.join().await {
                Ok((line, events)) => {
                    wait = LEAST_WAIT;
                    self.stay(&line, events).await
                }
                Err(why) => why,
            };
            self.shared.degrade(joined);
            sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
            wait = (wait * 2).min(MOST_WAIT);
        }
    }

    /// Connects and says everything. Events are heard from before anything is read or said.
    async fn join(&mut self) -> Result<(Line, impl Stream<Item = Vec<u8>> + Unpin + use<>), String> {
        let shared = Arc::clone(&self.shared);
        shared.counts.connections.add();
        (self.generation, self.sequence) = (self.generation + 1, 0);
        let (link, events) = connect(&shared.settings, &shared.keys.events()).await?;
        let (living, dead) = shared.members(&link).await?;
        if let Some((_, other)) = living.iter().find(|(_, beat)| beat.fleet != shared.settings.fleet) {
            return Err(shared.foreign(other));
        }

        shared.own.lock().unsay();
        let left = self.fill(&link).await?;
        let news = News::Beat(shared.heartbeat());
        let event = self.event(news);
        let mut script = shared.scripts.join.key(shared.keys.next_routes(shared.me));
        script.key(shared.keys.routes(shared.me)).key(shared.keys.replica(shared.me));
        script.key(shared.keys.replicas()).key(shared.keys.gone());
        script.arg(shared.me.to_string()).arg(shared.heartbeat().encode()).arg(millis(LIFE));
        script.arg(shared.keys.events()).arg(event);
        let _: () = link.run(&script, &shared.counts).await?;
        self.change(&link, left).await?;
        for id in dead {
            shared.bury(&link, id).await?;
        }

        let line = Line { link, broken: Arc::new(Notify::new()) };
        shared.members.lock().adopt(living);
        *shared.line.lock() = Some(line.clone());
        shared.restore();
        shared.everything_is_old();
        Ok((line, events))
    }

    /// Keeps what was said true. Says why that is no longer possible.
    async fn stay(&mut self, line: &Line, mut events: impl Stream<Item = Vec<u8>> + Unpin) -> String {
        let mut ticks = interval_at(Instant::now() + BEAT, BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = self.shared.members.lock().beats();
        let shared = Arc::clone(&self.shared);
        loop {
            let kept = tokio::select! {
                event = events.next() => match event {
                    Some(event) => shared.hear(&line.link, &event).await,
                    None => Err("Redis closed the connection".to_owned()),
                },
                _ = ticks.tick() => {
                    let before = std::mem::replace(&mut heard, shared.members.lock().beats());
                    if heard == before {
                        return "Redis does not pass events on".to_owned();
                    }
                    self.beat(&line.link).await
                }
                () = shared.unsaid.notified() => self.say(&line.link).await,
                () = line.broken.notified() => Err("Redis did not answer a lookup".to_owned()),
            };
            if let Err(why) = kept {
                return why;
            }
        }
    }

    /// Writes the records of all agents that are here, out of sight. Returns those that are not here any more.
    async fn fill(&self, link: &Link) -> Result<Vec<AgentId>, String> {
        let (shared, mut left) = (&self.shared, Vec::new());
        for first in std::iter::once(true).chain(std::iter::repeat(false)) {
            let words = shared.own.lock().say(BATCH);
            if words.is_empty() && !first {
                break;
            }
            let mut script = shared.scripts.fill.key(shared.keys.next_routes(shared.me));
            script.arg(self.generation).arg(millis(ROUTES_LIFE)).arg(u8::from(first));
            for (agent, record) in words {
                match record {
                    Some(record) => drop(script.arg(agent.0).arg(record)),
                    None => left.push(agent),
                }
            }
            let _: () = link.run(&script, &shared.counts).await?;
        }
        Ok(left)
    }

    /// Tells Redis what has changed here.
    async fn say(&mut self, link: &Link) -> Result<(), String> {
        loop {
            let words = self.shared.own.lock().say(BATCH);
            if words.is_empty() {
                return Ok(());
            }
            self.write(link, words).await?;
        }
    }

    async fn change(&mut self, link: &Link, left: Vec<AgentId>) -> Result<(), String> {
        for some in left.chunks(BATCH) {
            self.write(link, some.iter().map(|agent| (*agent, None)).collect()).await?;
        }
        Ok(())
    }

    async fn write(&mut self, link: &Link, words: Vec<(AgentId, Option<String>)>) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        let event = self.event(News::Changed(words.iter().map(|(agent, _)| *agent).collect()));
        let mut script = shared.scripts.change.key(shared.keys.routes(shared.me));
        script.key(shared.keys.gone());
        script.arg(self.generation).arg(seconds(SystemTime::now())).arg(millis(GONE_LIFE));
        script.arg(shared.keys.events()).arg(event);
        for (agent, record) in words {
            script.arg(agent.0).arg(record.unwrap_or_default());
        }
        known(link.run(&script, &shared.counts).await?)
    }

    async fn beat(&mut self, link: &Link) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        let event = self.event(News::Beat(shared.heartbeat()));
        self.beats += 1;
        let mut script = shared.scripts.beat.key(shared.keys.replica(shared.me));
        script.key(shared.keys.routes(shared.me));
        script.arg(millis(LIFE)).arg(shared.keys.events()).arg(event);
        if self.beats.is_multiple_of(BEATS_PER_AUDIT) {
            // One more: the generation.
            script.arg(millis(ROUTES_LIFE)).arg(shared.own.lock().said() + 1);
        }
        known(link.run(&script, &shared.counts).await?)
    }

    async fn leave(&mut self, link: &Link) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        let event = self.event(News::Left);
        let mut script = shared.scripts.leave.key(shared.keys.replica(shared.me));
        script.key(shared.keys.routes(shared.me)).key(shared.keys.next_routes(shared.me));
        script.key(shared.keys.replicas());
        script.arg(shared.me.to_string()).arg(shared.keys.events()).arg(event);
        link.run(&script, &shared.counts).await
    }

    fn event(&mut self, news: News) -> String {
        self.sequence += 1;
        Event { from: self.shared.me, generation: self.generation, sequence: self.sequence, news }.encode()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.degrade("kas has stopped to talk to Redis because of a bug: restart it".to_owned());
        }
    }
}

impl Shared {
    /// Why this Redis is not for this replica.
    pub(super) fn foreign(&self, other: &Heartbeat) -> String {
        format!(
            "this Redis is used by another fleet, {:?} at {}, with the same prefix {:?}; this one is {:?}: give each \
             fleet its own redis.key_prefix, and all replicas of one fleet the same redis.fleet",
            other.fleet, other.url, self.settings.prefix, self.settings.fleet
        )
    }

    /// Who lives, and who has left something behind.
    pub(super) async fn members(
        &self,
        link: &Link,
    ) -> Result<(Vec<(ReplicaId, Heartbeat)>, Vec<ReplicaId>), String> {
        let mut script = self.scripts.members.key(self.keys.replicas());
        script.arg(self.keys.heartbeats()).arg(MAX_REPLICAS).arg(MAX_RECORD);
        let found: Vec<Vec<u8>> = link.run(&script, &self.counts).await?;
        let (mut living, mut dead) = (Vec::new(), Vec::new());
        for pair in found.chunks_exact(2) {
            let id: Option<ReplicaId> = str::from_utf8(&pair[0]).ok().and_then(|id| id.parse().ok());
            let Some(id) = id.filter(|id| *id != self.me) else {
                continue;
            };
            if pair[1].is_empty() {
                dead.push(id);
                continue;
            }
            match Heartbeat::decode(&pair[1]) {
                Ok(beat) => living.push((id, beat)),
                Err(error) => self.reject("a heartbeat", &error),
            }
        }
        Ok((living, dead))
    }

    async fn hear(&self, link: &Link, text: &[u8]) -> Result<(), String> {
        let event = match Event::decode(text) {
            Ok(event) => event,
            Err(error) => {
                self.reject("an event", &error);
                return Ok(());
            }
        };
        let from = event.from;
        let meaning = self.members.lock().hear(event);
        match meaning {
            Meaning::Nothing => {}
            Meaning::Agents(agents) => {
                for agent in agents {
                    self.answers.forget(agent);
                    self.waiting.wake(agent);
                }
            }
            Meaning::Everything => self.everything_is_old(),
            Meaning::Foreigner(fleet) => self.reject("a replica", &format!("{from} is of fleet {fleet:?}")),
            Meaning::Own => {
                let dead = self.members.lock().bury();
                for id in dead {
                    tracing::warn!(replica = %id, "a replica is gone without a word");
                    self.unburied.lock().push(id);
                    self.everything_is_old();
                }
                self.bury_all(link).await?;
            }
        }
        Ok(())
    }

    pub(super) fn everything_is_old(&self) {
        self.answers.forget_all();
        self.waiting.wake_all();
    }

    fn restore(&self) {
        if self.health.send_replace(Health::Healthy) != Health::Healthy {
            tracing::info!("Redis knows what this replica holds");
        }
    }

    fn degrade(&self, why: String) {
        *self.line.lock() = None;
        // What changes from now on, nobody says.
        self.answers.forget_all();
        self.health.send_modify(|health| {
            let since = match health {
                Health::Healthy => {
                    tracing::warn!(why, "Redis is lost: routes are served from memory");
                    SystemTime::now()
                }
                Health::Degraded { since, why: before } => {
                    if **before != *why {
                        tracing::warn!(why, "Redis is not there: routes are served from memory");
                    }
                    *since
                }
            };
            *health = Health::Degraded { since, why: why.into() };
        });
    }
}

/// What a script answers that is refused unless Redis still has what it was told.
fn known(answer: u8) -> Result<(), String> {
    if answer == 0 { Err("Redis has lost what this replica told it".to_owned()) } else { Ok(()) }
}

pub(super) fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

//! The agents that accept connections and open none, as GitLab lists them: people register their URLs there.
//!
//! ```text
//!   GitLab ──► list, every `poll_interval` ──► entries, each checked by itself ──► targets ──► the task that dials (kas-core)
//! ```

mod entry;

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use access::DialTarget;
use http::StatusCode;
use kas_core::agents::DialSource;
use process::LogLimiter;
use proto::AgentId;
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::watch, task::spawn_blocking, time::sleep};

use self::entry::{DefaultRoots, parse};
use crate::{Credential, Endpoint, GitLabClient};

/// The shortest time between two lists while GitLab has none.
const UNLICENSED_INTERVAL: Duration = Duration::from_secs(600);
/// The time of answers 404 in a row after which there are no agents: earlier ones may be of a proxy, or of a GitLab that restarts or
/// switches kas off.
const MISSING_TIME: Duration = Duration::from_secs(300);
/// The period in which lists that cannot be read are logged once.
const LOG_PERIOD: Duration = Duration::from_secs(600);
/// The most agents.
const MAX_AGENTS: usize = 1000;

type Targets = HashMap<AgentId, DialTarget>;
/// The reasons for which kas does not dial agents of the list, by agent.
type Refusals = BTreeMap<String, String>;

/// Reads the list of agents that kas dials.
#[derive(Debug)]
pub struct ReceptiveAgentsPoller {
    client: GitLabClient,
    interval: Duration,
    targets: watch::Sender<Arc<Targets>>,
    refused: Refusals,
    missing: MissingLists,
    log_limit: LogLimiter<&'static str>,
}

/// The answers 404 in a row.
#[derive(Debug, Default)]
struct MissingLists {
    /// The time of the first one.
    since: Option<Instant>,
    cleared: bool,
}

/// The meaning of an answer 404 for the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingList {
    /// The present targets stay.
    Keep,
    /// From now on, there are none.
    Clear,
    /// There are none already.
    Cleared,
}

#[derive(Deserialize)]
struct List {
    agents: Vec<Value>,
}

impl ReceptiveAgentsPoller {
    /// Creates the task, and returns the agents that it has read last.
    pub fn new(client: GitLabClient, interval: Duration) -> (Self, DialSource) {
        let (targets, source) = watch::channel(Arc::default());
        let poller = Self {
            client,
            interval,
            targets,
            refused: Refusals::new(),
            missing: MissingLists::default(),
            log_limit: LogLimiter::new(LOG_PERIOD),
        };
        (poller, source)
    }

    /// Reads the list from time to time. The future never completes.
    pub async fn run(mut self) {
        loop {
            let interval = self.read().await;
            sleep(interval.mul_f64(rand::random_range(0.9..1.1))).await;
        }
    }

    /// Reads the list once. Returns the time until the next one.
    async fn read(&mut self) -> Duration {
        let list = self.client.get::<List>(Endpoint::ReceptiveAgents, &[], Credential::None).await;
        let now = Instant::now();
        match list {
            Ok(List { agents }) => {
                self.missing = MissingLists::default();
                let read = move || targets(agents, &DefaultRoots::new(tls::system_roots()));
                match spawn_blocking(read).await {
                    Ok((targets, refused)) => self.replace(targets, refused),
                    Err(error) => {
                        tracing::error!(%error, "the list of receptive agents was not read; this is a defect")
                    }
                }
                self.interval
            }
            Err(error) if error.is_status(StatusCode::NOT_FOUND) => self.on_missing_list(now),
            Err(error) => {
                self.missing = MissingLists::default();
                match self.log_limit.admit("list", now) {
                    Some(suppressed) => {
                        tracing::warn!(%error, suppressed, "the list of receptive agents was not read; its last agents stay");
                    }
                    None => tracing::debug!(%error, "the list of receptive agents was not read"),
                }
                self.interval
            }
        }
    }

    fn on_missing_list(&mut self, now: Instant) -> Duration {
        let switched_off = *self.client.switched_off().borrow();
        match self.missing.judge(switched_off, now) {
            MissingList::Keep => self.interval,
            MissingList::Clear => {
                tracing::info!(
                    "GitLab lists no receptive agents: it answers 404, as without a licence for them"
                );
                self.replace(Targets::new(), Refusals::new());
                self.interval.max(UNLICENSED_INTERVAL)
            }
            MissingList::Cleared => self.interval.max(UNLICENSED_INTERVAL),
        }
    }

    fn replace(&mut self, targets: Targets, refused: Refusals) {
        for (agent, reason) in &refused {
            if self.refused.get(agent) != Some(reason) {
                tracing::warn!(agent.id = %agent, reason, "kas cannot dial an agent that GitLab lists");
            }
        }
        self.refused = refused;
        self.targets.send_if_modified(|current| {
            let modified = **current != targets;
            if modified {
                *current = Arc::new(targets);
            }
            modified
        });
    }
}

impl MissingLists {
    /// Decides about another answer 404. A GitLab that has switched kas off says nothing about its agents.
    fn judge(&mut self, switched_off: bool, now: Instant) -> MissingList {
        if switched_off {
            self.since = None;
            return MissingList::Keep;
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < MISSING_TIME {
            return MissingList::Keep;
        }
        if mem::replace(&mut self.cleared, true) { MissingList::Cleared } else { MissingList::Clear }
    }
}

/// Returns the targets of a list, and why others are none. An entry that is wrong is no reason to lose the others.
fn targets(agents: Vec<Value>, roots: &DefaultRoots) -> (Targets, Refusals) {
    let (mut targets, mut refused) = (Targets::new(), Refusals::new());
    let mut agents: Vec<(usize, Value)> = agents.into_iter().enumerate().collect();
    // Too many agents are the same ones in each list and at each replica, in whatever order GitLab lists them.
    agents.sort_by_key(|(_, value)| value["id"].as_u64());
    for (index, value) in agents {
        let id = value["id"].as_u64();
        let name = id.map_or_else(|| format!("entry {index}"), |id| id.to_string());
        let parsed = match id {
            None => Err("it has no id".to_owned()),
            Some(_) if targets.len() >= MAX_AGENTS => Err(format!("kas dials at most {MAX_AGENTS} agents")),
            Some(id) if targets.contains_key(&AgentId(id)) => Err("it is listed twice".to_owned()),
            Some(id) => parse(&value, roots).map(|target| (AgentId(id), target)),
        };
        match parsed {
            Ok((id, target)) => {
                targets.insert(id, target);
            }
            Err(reason) if refused.len() < MAX_AGENTS => {
                refused.insert(name, reason);
            }
            Err(_) => {}
        }
    }
    (targets, refused)
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use serde_json::json;

    use super::*;

    fn targets_of(agents: Vec<Value>) -> (Targets, Refusals) {
        targets(agents, &DefaultRoots::new(RootCertStore::empty()))
    }

    const KEY: &str = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";

    fn agent(id: u64) -> Value {
        json!({"id": id, "url": format!("grpcs://agent-{id}.example.com"), "jwt": {"private_key": KEY}})
    }

    #[test]
    fn wrong_entry_loses_no_other_one() {
        let wrong = [
            (json!({"url": "grpcs://a"}), "entry 0", "it has no id"),
            (json!("text"), "entry 1", "it has no id"),
            (json!({"id": 5}), "5", "it has no url"),
            (agent(1), "1", "it is listed twice"),
        ];
        let list: Vec<Value> = wrong.iter().map(|(value, ..)| value.clone()).collect();
        let (targets, refused) = targets_of([list, vec![agent(2)]].concat());
        let mut ids: Vec<u64> = targets.keys().map(|id| id.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        for (_, name, reason) in &wrong[..3] {
            assert_eq!(refused[*name], *reason);
        }
        assert_eq!(refused.len(), 3, "the first entry of an agent counts");
        let (twice, refused) = targets_of(vec![agent(1), agent(1)]);
        assert_eq!((twice.len(), &*refused["1"]), (1, "it is listed twice"));
    }

    #[test]
    fn number_of_agents_is_bounded() {
        let (targets, refused) = targets_of((0..1005).rev().map(agent).collect());
        assert_eq!((targets.len(), refused.len()), (MAX_AGENTS, 5));
        assert_eq!(refused["1004"], "kas dials at most 1000 agents");
    }

    #[test]
    fn only_answers_404_that_last_end_all_agents() {
        let start = Instant::now();
        let mut missing = MissingLists::default();
        for (seconds, switched_off, expected) in [
            (0, false, MissingList::Keep),
            (10, false, MissingList::Keep),
            (299, false, MissingList::Keep),
            // GitLab has switched kas off: the time begins again afterwards.
            (400, true, MissingList::Keep),
            (500, false, MissingList::Keep),
            (799, false, MissingList::Keep),
            (800, false, MissingList::Clear),
            (801, false, MissingList::Cleared),
            (1400, false, MissingList::Cleared),
        ] {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(missing.judge(switched_off, now), expected, "{seconds} {switched_off}");
        }
    }
}

//! The agents that accept connections and open none, as GitLab lists them: people register their URLs there.
//!
//! ```text
//!   GitLab ──► list, every `poll_interval` ──► entries, each checked by itself ──► targets ──► the task that dials (kas-core)
//! ```

mod entry;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use access::DialTarget;
use http::StatusCode;
use kas_core::agents::DialSource;
use proto::AgentId;
use rustls::RootCertStore;
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::watch, task::spawn_blocking, time::sleep};

use self::entry::parse;
use crate::{Credential, Endpoint, GitLabClient};

/// The shortest time between two lists while GitLab has none.
const UNLICENSED_INTERVAL: Duration = Duration::from_secs(600);
/// The answers 404 in a row after which there are no agents: a single one may be of a proxy, or of a GitLab that switches kas off.
const MISSING_LISTS: u32 = 2;
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
    /// The answers 404 in a row.
    missing: u32,
}

/// What a list means for the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingList {
    /// The present targets stay.
    Keep,
    /// There are none.
    Clear,
}

#[derive(Deserialize)]
struct List {
    agents: Vec<Value>,
}

impl ReceptiveAgentsPoller {
    /// Creates the task, and returns the agents that it has read last.
    pub fn new(client: GitLabClient, interval: Duration) -> (Self, DialSource) {
        let (targets, source) = watch::channel(Arc::default());
        (Self { client, interval, targets, refused: Refusals::new(), missing: 0 }, source)
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
        let list = self.client.try_get::<List>(Endpoint::ReceptiveAgents, &[], Credential::None).await;
        match list {
            Ok(List { agents }) => {
                self.missing = 0;
                match spawn_blocking(move || targets(agents, &tls::system_roots().into())).await {
                    Ok((targets, refused)) => self.replace(targets, refused),
                    Err(error) => {
                        tracing::error!(%error, "the list of receptive agents was not read; this is a defect")
                    }
                }
                self.interval
            }
            Err(error) if error.is_status(StatusCode::NOT_FOUND) => self.on_missing_list(),
            Err(error) => {
                tracing::debug!(%error, "the list of receptive agents was not read");
                self.interval
            }
        }
    }

    fn on_missing_list(&mut self) -> Duration {
        self.missing = self.missing.saturating_add(1);
        let switched_off = *self.client.switched_off().borrow();
        match judge_missing(self.missing, switched_off) {
            MissingList::Keep => self.interval,
            MissingList::Clear => {
                if self.missing == MISSING_LISTS {
                    tracing::info!(
                        "GitLab lists no receptive agents: it answers 404, as without a licence for them"
                    );
                }
                self.replace(Targets::new(), Refusals::new());
                self.interval.max(UNLICENSED_INTERVAL)
            }
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

/// Decides after so many answers 404 in a row. A GitLab that has switched kas off says nothing about its agents.
fn judge_missing(missing: u32, switched_off: bool) -> MissingList {
    if missing >= MISSING_LISTS && !switched_off { MissingList::Clear } else { MissingList::Keep }
}

/// Returns the targets of a list, and why others are none. An entry that is wrong is no reason to lose the others.
fn targets(agents: Vec<Value>, roots: &Arc<RootCertStore>) -> (Targets, Refusals) {
    let (mut targets, mut refused) = (Targets::new(), Refusals::new());
    for (index, value) in agents.into_iter().enumerate() {
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
    use serde_json::json;

    use super::*;

    fn targets_of(agents: Vec<Value>) -> (Targets, Refusals) {
        targets(agents, &Arc::new(RootCertStore::empty()))
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
        let (targets, refused) = targets_of((0..1005).map(agent).collect());
        assert_eq!((targets.len(), refused.len()), (MAX_AGENTS, 5));
        assert_eq!(refused["1004"], "kas dials at most 1000 agents");
    }

    #[test]
    fn single_missing_list_and_a_switched_off_gitlab_change_nothing() {
        for (missing, switched_off, expected) in [
            (1, false, MissingList::Keep),
            (2, false, MissingList::Clear),
            (9, false, MissingList::Clear),
            (9, true, MissingList::Keep),
        ] {
            assert_eq!(judge_missing(missing, switched_off), expected, "{missing} {switched_off}");
        }
    }
}

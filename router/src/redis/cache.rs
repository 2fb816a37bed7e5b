//! What was looked up: for a short life, or until a push says that it is old. Old answers are kept for when Redis is down.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use moka::future::Cache;
use proto::AgentId;
use tokio::time::Instant;

use super::counts::Counts;
use crate::store::{Route, StoreError};

/// Most agents that are remembered, at some hundred bytes each.
const CAPACITY: u64 = 100_000;
/// How long an answer may serve while Redis is down.
const STALE_LIFE: Duration = Duration::from_secs(3600);
/// How long an answer serves although nothing was pushed: a bound for what pushes cannot say.
const POSITIVE_LIFE: Duration = Duration::from_secs(30);
/// The same for an agent that is nowhere.
const NEGATIVE_LIFE: Duration = Duration::from_secs(5);
/// Agents share counters of what is old: sometimes an answer is thrown away for another agent's sake.
const STRIPES: usize = 1024;

/// What Redis said of an agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) routes: Vec<Route>,
    pub(super) gone_since: Option<SystemTime>,
}

/// The answers.
#[derive(Debug)]
pub(super) struct Answers {
    cache: Cache<AgentId, Arc<Answer>>,
    /// Of each stripe, how often something became old; an answer carries the count from before its question.
    pushes: Box<[AtomicU64]>,
    everything: AtomicU64,
}

#[derive(Debug)]
struct Answer {
    found: Result<Found, StoreError>,
    asked: Instant,
    version: (u64, u64),
}

impl Answers {
    pub(super) fn new() -> Self {
        let cache = Cache::builder().max_capacity(CAPACITY).time_to_live(STALE_LIFE).build();
        let pushes = (0..STRIPES).map(|_| AtomicU64::new(0)).collect();
        Self { cache, pushes, everything: AtomicU64::new(0) }
    }

    /// What is known of the agent, or what `ask` says: one question at a time for each agent. `ask` is given what was
    /// known before; if it fails, that is the answer.
    pub(super) async fn get<F>(
        &self,
        agent: AgentId,
        counts: &Counts,
        ask: impl FnOnce(Option<Found>) -> F,
    ) -> Result<Found, StoreError>
    where
        F: Future<Output = Result<Found, StoreError>>,
    {
        let known = self.cache.get(&agent).await;
        if let Some(known) = known.as_ref().filter(|known| self.serves(agent, known)) {
            counts.hits.add();
            return known.found.clone();
        }

        let before = known.and_then(|known| known.found.clone().ok());
        let question = async {
            let (asked, version) = (Instant::now(), self.version(agent));
            counts.misses.add();
            let found = match ask(before.clone()).await {
                Ok(found) => return Arc::new(Answer { found: Ok(found), asked, version }),
                Err(error) => before.ok_or(error),
            };
            match found {
                Ok(_) => counts.stale.add(),
                Err(_) => counts.unavailable.add(),
            }
            // Is not served again without another question.
            Arc::new(Answer { found, asked, version: OLD })
        };
        let entry = self.cache.entry(agent).or_insert_with_if(question, |known| !self.serves(agent, known));
        entry.await.into_value().found.clone()
    }

    /// What is known of the agent is old.
    pub(super) fn forget(&self, agent: AgentId) {
        self.stripe(agent).fetch_add(1, SeqCst);
    }

    /// What is known of anybody is old.
    pub(super) fn forget_all(&self) {
        self.everything.fetch_add(1, SeqCst);
    }

    fn serves(&self, agent: AgentId, answer: &Answer) -> bool {
        let life = match &answer.found {
            Ok(found) if found.routes.is_empty() => NEGATIVE_LIFE,
            Ok(_) => POSITIVE_LIFE,
            Err(_) => return false,
        };
        answer.version == self.version(agent) && answer.asked.elapsed() < life
    }

    fn version(&self, agent: AgentId) -> (u64, u64) {
        (self.everything.load(SeqCst), self.stripe(agent).load(SeqCst))
    }

    fn stripe(&self, agent: AgentId) -> &AtomicU64 {
        &self.pushes[agent.0 as usize % STRIPES]
    }
}

/// A version that is never the present one.
const OLD: (u64, u64) = (u64::MAX, u64::MAX);

#[cfg(test)]
mod tests {
    use std::future::ready;

    use proto::{Epoch, ReplicaId};
    use tokio::{join, sync::Notify, time::advance};

    use super::*;

    const AGENT: AgentId = AgentId(7);

    fn found() -> Found {
        Found { routes: vec![Route { replica: ReplicaId::random(), epoch: Epoch(1) }], gone_since: None }
    }

    fn down() -> Result<Found, StoreError> {
        Err(StoreError("down".into()))
    }

    async fn asked(answers: &Answers, result: Result<Found, StoreError>) -> bool {
        let counts = Counts::default();
        let answer = answers.get(AGENT, &counts, |_| ready(result)).await;
        answer.is_ok() && counts.misses.get() == 1
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_serves_for_its_life_and_until_a_push() {
        let answers = Answers::new();
        assert!(asked(&answers, Ok(found())).await);
        assert!(!asked(&answers, Ok(found())).await);
        answers.forget(AGENT);
        assert!(asked(&answers, Ok(found())).await);
        answers.forget_all();
        assert!(asked(&answers, Ok(found())).await);
        advance(POSITIVE_LIFE).await;
        assert!(asked(&answers, Ok(Found::default())).await);
        assert!(!asked(&answers, Ok(found())).await);
        advance(NEGATIVE_LIFE).await;
        assert!(asked(&answers, Ok(found())).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_push_during_the_question_makes_its_answer_old() {
        let (answers, counts) = (Answers::new(), Counts::default());
        let ask = |_| async {
            answers.forget(AGENT);
            Ok(Found::default())
        };
        answers.get(AGENT, &counts, ask).await.unwrap();
        assert!(asked(&answers, Ok(found())).await);
    }

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_at_once_are_one_question() {
        let (answers, counts, go) = (Answers::new(), Counts::default(), Notify::new());
        let ask = |_| async {
            go.notified().await;
            Ok(found())
        };
        let first = answers.get(AGENT, &counts, ask);
        let second = answers.get(AGENT, &counts, |_| async { panic!("it was asked already") });
        let (first, second, ()) = join!(first, second, async { go.notify_one() });
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(counts.misses.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn while_redis_is_down_old_answers_serve_and_heal_at_once() {
        let (answers, counts) = (Answers::new(), Counts::default());
        let nothing = answers.get(AGENT, &counts, |_| ready(down())).await;
        assert!(nothing.unwrap_err().to_string().contains("down"));
        let here = found();
        answers.get(AGENT, &counts, |_| ready(Ok(here.clone()))).await.unwrap();
        answers.forget_all();
        for _ in 0..2 {
            let stale = answers.get(AGENT, &counts, |_| ready(down())).await.unwrap();
            assert_eq!(stale.routes, here.routes);
        }
        assert_eq!((counts.unavailable.get(), counts.stale.get()), (1, 2));
        let fresh = answers.get(AGENT, &counts, |_| ready(Ok(Found::default()))).await.unwrap();
        assert!(fresh.routes.is_empty());
    }
}

//! Deployments: the jobs with an environment that were allowed to use an agent. Their records are completed when they are read.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use environments_wire::{Deployment, DeploymentFacts, DeploymentRecords, DeploymentStatus, JobResults, Tier};
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use globset::GlobMatcher;
use parking_lot::Mutex;
use proto::AgentId;
use serde::{Deserialize, Serialize};
use store::{
    StoreError,
    redis::{MAX_DEPLOYMENTS, RedisStore},
};
use tokio::time::{Instant, timeout_at};

/// The longest record that is read from Redis, in bytes.
const MAX_RECORD: usize = 4096;
/// The jobs of which a replica remembers that they are recorded.
const REMEMBERED: usize = 1000;
/// The most jobs of which one list asks GitLab for the result, those that are asked at the same time, and the time for all.
const MAX_ASKED: usize = 50;
const ASKED_AT_ONCE: usize = 8;
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// The age at which a job counts as running no more, if its end is not known: kas was stopped while it ran.
const MAX_RUNNING: Duration = Duration::from_secs(86_400);
/// The time for which readers share a list of Redis, which may have 1 MB.
const SHARED_FOR: Duration = Duration::from_secs(3);

/// The most recent deployments: in Redis, or in memory without Redis. Clones are cheap, and share the deployments.
#[derive(Clone, Debug)]
pub struct Deployments {
    store: Store,
    results: Option<Arc<dyn JobResults>>,
    /// The number of open records that have had their turn.
    turn: Arc<AtomicUsize>,
    /// The last list with the results of jobs, and the last one without.
    shared: Arc<Mutex<Option<SharedList>>>,
    known: Arc<Mutex<Option<SharedList>>>,
}

/// A list of Redis.
#[derive(Clone, Debug)]
struct SharedList {
    deployments: Arc<[Deployment]>,
    loaded: Instant,
}

#[derive(Clone, Debug)]
enum Store {
    Memory(Arc<Mutex<VecDeque<Deployment>>>),
    Redis { store: RedisStore, last: Arc<Mutex<VecDeque<(u64, AgentId)>>> },
}

/// A record, and its text in Redis.
#[derive(Debug)]
struct Record {
    deployment: Deployment,
    text: Option<String>,
}

/// Selects deployments. An empty field selects all.
#[derive(Clone, Debug, Default)]
pub struct DeploymentQuery {
    /// The id of the project.
    pub project_id: Option<u64>,
    /// The full path of the project.
    pub project: Option<String>,
    /// The pattern of the slug of the environment.
    pub environment: Option<GlobMatcher>,
    /// The tier of the environment.
    pub tier: Option<Tier>,
    /// The agent.
    pub agent: Option<AgentId>,
    /// The first digits of the commit, in lower case.
    pub commit: Option<String>,
    /// The status.
    pub status: Option<DeploymentStatus>,
}

/// A deployment, and whether it is the one that its environment has.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeploymentEntry {
    #[serde(flatten)]
    deployment: Deployment,
    /// True if it is the last successful one to its environment with its agent, as far as kas has recorded; `None` if its result, or that of
    /// a later one, is not known.
    current: Option<bool>,
}

/// The deployments that a query selects.
#[derive(Debug, Default)]
pub struct DeploymentSelection {
    /// The deployments, the newest first.
    pub entries: Vec<DeploymentEntry>,
    /// The number of deployments that an environment may have, and whose commit or project, by which the query selects, is not known.
    pub unclear: usize,
}

impl Deployments {
    /// Keeps the deployments in Redis, or in memory without it. `results` completes them.
    pub fn new(redis: Option<RedisStore>, results: Option<Arc<dyn JobResults>>) -> Self {
        let store = match redis {
            Some(store) => Store::Redis { store, last: Arc::default() },
            None => Store::Memory(Arc::default()),
        };
        Self { store, results, turn: Arc::default(), shared: Arc::default(), known: Arc::default() }
    }

    /// Returns the deployments that the query selects, the newest first.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn select(
        &self,
        query: &DeploymentQuery,
        limit: usize,
    ) -> Result<DeploymentSelection, StoreError> {
        let deployments = self.list().await?;
        let all: Vec<_> = deployments.iter().zip(current(&deployments)).collect();
        let may_be_there = |current: &Option<bool>| *current != Some(false);
        let unclear =
            all.iter().filter(|(deployment, current)| may_be_there(current) && query.may_select(deployment));
        let unclear = unclear.count();
        let selected = all.into_iter().filter(|(deployment, _)| query.selects(deployment)).take(limit);
        let entry = |(deployment, current): (&Deployment, _)| DeploymentEntry {
            deployment: deployment.clone(),
            current,
        };
        Ok(DeploymentSelection { entries: selected.map(entry).collect(), unclear })
    }

    /// Returns all records, the newest first.
    async fn records(&self) -> Result<Vec<Record>, StoreError> {
        match &self.store {
            Store::Memory(deployments) => {
                let record = |deployment: &Deployment| Record { deployment: deployment.clone(), text: None };
                Ok(deployments.lock().iter().map(record).collect())
            }
            Store::Redis { store, .. } => Ok(parse(&store.deployments().await?)),
        }
    }

    /// Asks for the results of jobs whose end is not known, the newest first, as long as there is time.
    async fn complete(&self, records: &mut [Record]) {
        let Some(results) = &self.results else { return };
        let end = Instant::now() + ASK_TIMEOUT;
        let is_open = |record: &Record| !record.deployment.facts.status.is_final();
        let open: Vec<usize> = (0..records.len()).filter(|at| is_open(&records[*at])).collect();
        let open = self.next_asked(open);
        let asked = open.into_iter().map(|at| {
            let (results, deployment) = (Arc::clone(results), records[at].deployment.clone());
            async move { (at, timeout_at(end, results.facts(&deployment)).await.ok().flatten()) }
        });
        let asked: Vec<_> = stream::iter(asked.collect::<Vec<_>>()).buffered(ASKED_AT_ONCE).collect().await;
        for (at, facts) in asked {
            let record = &mut records[at];
            let Some(new) = facts.map(|facts| record.deployment.with_facts(facts)) else { continue };
            if new == record.deployment {
                continue;
            }
            // The next list asks again if the record could not be replaced.
            let replaced = timeout_at(end, self.put(record, &new)).await;
            if !matches!(replaced, Ok(Ok(()))) {
                tracing::debug!(job = new.job, "the completed record of a deployment was not kept");
            }
            record.deployment = new;
        }
    }

    /// Returns those of the open records about which GitLab is asked now: the newest ones, and others in turn, so that jobs about which it
    /// never answers are in the way of none.
    fn next_asked(&self, mut open: Vec<usize>) -> Vec<usize> {
        if open.len() <= MAX_ASKED {
            return open;
        }
        let mut others = open.split_off(MAX_ASKED / 2);
        let turn = self.turn.fetch_add(MAX_ASKED / 2, Relaxed) % others.len();
        others.rotate_left(turn);
        open.extend(others.into_iter().take(MAX_ASKED / 2));
        open
    }

    /// Returns a list that another reader has loaded, if it is new enough.
    fn shared(list: &Mutex<Option<SharedList>>) -> Option<Arc<[Deployment]>> {
        let shared = list.lock();
        let is_new = |list: &&SharedList| list.loaded.elapsed() < SHARED_FOR;
        shared.as_ref().filter(is_new).map(|list| Arc::clone(&list.deployments))
    }

    /// Lets other readers use a list of Redis for a while.
    fn share(&self, list: &Mutex<Option<SharedList>>, records: Vec<Record>) -> Arc<[Deployment]> {
        let now = SystemTime::now();
        let deployments = records.into_iter().map(|record| forget_running(record.deployment, now));
        let deployments: Arc<[Deployment]> = deployments.collect();
        if let Store::Redis { .. } = self.store {
            let shared = SharedList { deployments: Arc::clone(&deployments), loaded: Instant::now() };
            *list.lock() = Some(shared);
        }
        deployments
    }

    async fn put(&self, old: &Record, new: &Deployment) -> Result<(), StoreError> {
        match &self.store {
            Store::Memory(deployments) => {
                let mut deployments = deployments.lock();
                let is_old = |known: &&mut Deployment| id(known) == id(&old.deployment);
                if let Some(known) = deployments.iter_mut().find(is_old) {
                    known.clone_from(new);
                }
                Ok(())
            }
            Store::Redis { store, .. } => {
                let old = old.text.clone().unwrap_or_else(|| serialize(&old.deployment));
                store.replace_deployment(&old, &serialize(new)).await
            }
        }
    }
}

impl DeploymentRecords for Deployments {
    fn record(&self, deployment: Deployment) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let id = id(&deployment);
            match &self.store {
                Store::Memory(deployments) => {
                    let mut deployments = deployments.lock();
                    if !deployments.iter().any(|known| self::id(known) == id) {
                        deployments.push_front(deployment);
                        deployments.truncate(MAX_DEPLOYMENTS);
                    }
                }
                Store::Redis { store, last } => {
                    if last.lock().contains(&id) {
                        return Ok(());
                    }
                    store.push_deployment(&serialize(&deployment)).await?;
                    let mut last = last.lock();
                    last.push_front(id);
                    last.truncate(REMEMBERED);
                }
            }
            Ok(())
        })
    }

    fn replace<'a>(
        &'a self,
        old: &'a Deployment,
        new: &'a Deployment,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let old = Record { deployment: old.clone(), text: None };
        Box::pin(async move { self.put(&old, new).await })
    }

    fn known(&self) -> BoxFuture<'_, Result<Arc<[Deployment]>, StoreError>> {
        Box::pin(async move {
            if let Some(known) = Self::shared(&self.shared).or_else(|| Self::shared(&self.known)) {
                return Ok(known);
            }
            Ok(self.share(&self.known, self.records().await?))
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Arc<[Deployment]>, StoreError>> {
        Box::pin(async move {
            if let Some(shared) = Self::shared(&self.shared) {
                return Ok(shared);
            }
            let mut records = self.records().await?;
            self.complete(&mut records).await;
            Ok(self.share(&self.shared, records))
        })
    }
}

fn id(deployment: &Deployment) -> (u64, AgentId) {
    (deployment.job, deployment.agent)
}

/// Returns the text of a record. The facts are left out if it is longer than any record that is read.
fn serialize(deployment: &Deployment) -> String {
    let text = |deployment: &Deployment| serde_json::to_string(deployment).expect("serializable");
    let complete = text(deployment);
    if complete.len() <= MAX_RECORD {
        return complete;
    }
    let facts = DeploymentFacts { status: deployment.facts.status, ..DeploymentFacts::default() };
    text(&Deployment { facts, ..deployment.clone() })
}

/// Parses the records of Redis, which are not trusted, and sorts them, the newest first. Two replicas may have recorded the same job: the
/// record that says more is used.
fn parse(records: &[Vec<u8>]) -> Vec<Record> {
    let (mut found, mut known) = (Vec::<Record>::new(), HashMap::new());
    for record in records.iter().filter(|record| record.len() <= MAX_RECORD) {
        let Ok(deployment) = serde_json::from_slice::<Deployment>(record) else { continue };
        let record = Record { text: String::from_utf8(record.clone()).ok(), deployment };
        match known.entry(id(&record.deployment)) {
            Entry::Vacant(place) => {
                place.insert(found.len());
                found.push(record);
            }
            Entry::Occupied(place) => {
                let before = &mut found[*place.get()];
                if completeness(&record.deployment) > completeness(&before.deployment) {
                    *before = record;
                }
            }
        }
    }
    // A record that was replaced is at the front of the list.
    found.sort_by_key(|record| std::cmp::Reverse(record.deployment.time));
    found
}

/// Returns a measure of how much a record says: whether it has a commit, and whether it has a result.
fn completeness(deployment: &Deployment) -> (bool, bool) {
    (deployment.commit.is_some(), deployment.facts.status.is_final())
}

/// Returns a deployment whose job does not count as running for ever.
fn forget_running(mut deployment: Deployment, now: SystemTime) -> Deployment {
    let is_old = now.duration_since(deployment.time).is_ok_and(|age| age > MAX_RUNNING);
    if is_old && deployment.facts.status == DeploymentStatus::Running {
        deployment.facts.status = DeploymentStatus::Unknown;
    }
    deployment
}

/// Returns for each deployment whether its environment has it. As in GitLab, the one that has ended last counts, and not the one that has
/// begun last.
fn current(deployments: &[Deployment]) -> Vec<Option<bool>> {
    let (mut decided, mut unclear) = (HashSet::new(), HashSet::new());
    let mut of_deployment = |deployment: &Deployment| {
        let place = (deployment.project_id, deployment.environment.clone(), deployment.agent);
        match deployment.facts.status {
            _ if decided.contains(&place) => Some(false),
            DeploymentStatus::Success => {
                let is_clear = !unclear.contains(&place);
                decided.insert(place);
                is_clear.then_some(true)
            }
            DeploymentStatus::Running | DeploymentStatus::Failed | DeploymentStatus::Canceled => Some(false),
            DeploymentStatus::Unknown => {
                unclear.insert(place);
                None
            }
        }
    };
    let mut latest_first: Vec<usize> = (0..deployments.len()).collect();
    latest_first.sort_by_key(|at| {
        let Deployment { time, facts, .. } = &deployments[*at];
        std::cmp::Reverse(facts.finished.unwrap_or(*time))
    });
    let mut found = vec![None; deployments.len()];
    for at in latest_first {
        found[at] = of_deployment(&deployments[at]);
    }
    found
}

impl DeploymentQuery {
    /// Returns whether the query would select a deployment with another commit or project, of which one is not known of this deployment.
    fn may_select(&self, deployment: &Deployment) -> bool {
        let is_unknown = self.commit.is_some() && deployment.commit.is_none()
            || self.project.is_some() && deployment.project.is_none();
        let known = Self {
            commit: self.commit.clone().filter(|_| deployment.commit.is_some()),
            project: self.project.clone().filter(|_| deployment.project.is_some()),
            ..self.clone()
        };
        is_unknown && known.selects(deployment)
    }

    fn selects(&self, deployment: &Deployment) -> bool {
        let Self { project_id, project, environment, tier, agent, commit, status } = self;
        let is_commit = |prefix: &String| {
            deployment.commit.as_ref().is_some_and(|commit| commit.to_ascii_lowercase().starts_with(prefix))
        };
        project_id.is_none_or(|project| project == deployment.project_id)
            && project.as_ref().is_none_or(|project| Some(project) == deployment.project.as_ref())
            && environment.as_ref().is_none_or(|pattern| pattern.is_match(&deployment.environment))
            && tier.is_none_or(|tier| tier == deployment.tier)
            && agent.is_none_or(|agent| agent == deployment.agent)
            && commit.as_ref().is_none_or(is_commit)
            && status.is_none_or(|status| status == deployment.facts.status)
    }
}

#[cfg(test)]
mod tests {
    use globset::Glob;

    use super::*;

    fn deployment(job: u64) -> Deployment {
        Deployment {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(job),
            agent: AgentId(job % 2),
            namespace: None,
            project_id: 7,
            project: None,
            environment: "production".into(),
            tier: Tier::Production,
            job,
            commit: Some(format!("0A1B2C{job:034x}")),
            username: Some("alice".into()),
            facts: DeploymentFacts::default(),
        }
    }

    fn with_status(job: u64, status: DeploymentStatus) -> Deployment {
        let facts = DeploymentFacts { status, ..DeploymentFacts::default() };
        Deployment { agent: AgentId(1), facts, ..deployment(job) }
    }

    fn jobs(deployments: &[Deployment]) -> Vec<u64> {
        deployments.iter().map(|deployment| deployment.job).collect()
    }

    fn parsed(records: &[Vec<u8>]) -> Vec<Deployment> {
        parse(records).into_iter().map(|record| record.deployment).collect()
    }

    async fn selected(deployments: &Deployments, query: DeploymentQuery, limit: usize) -> Vec<u64> {
        let found = deployments.select(&query, limit).await.unwrap();
        found.entries.iter().map(|entry| entry.deployment.job).collect()
    }

    /// A script must not take the record of a job that GitLab has not described for a "no".
    #[tokio::test]
    async fn record_without_a_commit_or_a_project_makes_the_answer_unclear() {
        let deployments = Deployments::new(None, None);
        for job in [2, 4] {
            let bare = Deployment { commit: None, project: None, ..deployment(job) };
            deployments.record(bare).await.unwrap();
        }
        let commit = || Some("fffffff".to_owned());
        let all = DeploymentQuery::default;
        for (query, expected) in [
            (DeploymentQuery { commit: commit(), ..all() }, 2),
            (DeploymentQuery { commit: commit(), tier: Some(Tier::Staging), ..all() }, 0),
            (DeploymentQuery { project: Some("shop/web".to_owned()), ..all() }, 2),
            (all(), 0),
        ] {
            assert_eq!(deployments.select(&query, 10).await.unwrap().unclear, expected, "{query:?}");
        }
    }

    #[test]
    fn deployment_that_has_ended_last_is_current() {
        let ended = |job, second| {
            let mut deployment = with_status(job, DeploymentStatus::Success);
            deployment.facts.finished = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
            deployment
        };
        assert_eq!(current(&[ended(9, 10), ended(5, 20)]), [Some(false), Some(true)]);
    }

    #[test]
    fn record_that_says_more_is_used() {
        let bare = Deployment { commit: None, ..deployment(1) };
        let described = with_status(1, DeploymentStatus::Success);
        for records in [[&bare, &described], [&described, &bare]] {
            let records = records.map(|record| serialize(record).into_bytes());
            assert_eq!(parsed(&records), std::slice::from_ref(&described));
        }
    }

    #[test]
    fn all_open_records_have_their_turn() {
        let deployments = Deployments::new(None, None);
        let mut asked = HashSet::new();
        for _ in 0..8 {
            let now = deployments.next_asked((0..200).collect());
            assert!(now.len() == MAX_ASKED && now.contains(&0));
            asked.extend(now);
        }
        assert_eq!(asked.len(), 200);
        assert_eq!(deployments.next_asked(vec![3, 4]), [3, 4]);
    }

    #[tokio::test]
    async fn newest_deployments_are_kept_once() {
        let deployments = Deployments::new(None, None);
        for job in [1, 2, 3, 3, 2] {
            deployments.record(deployment(job)).await.unwrap();
        }
        let all = DeploymentQuery::default;
        assert_eq!(selected(&deployments, all(), 10).await, [3, 2, 1]);
        assert_eq!(selected(&deployments, all(), 1).await, [3]);
        for job in 4..2000 {
            deployments.record(deployment(job)).await.unwrap();
        }
        assert_eq!(selected(&deployments, all(), usize::MAX).await.len(), MAX_DEPLOYMENTS);
    }

    #[test]
    fn query_selects_by_each_field() {
        let deployment = Deployment { project: Some("shop/web".to_owned()), ..deployment(1) };
        let all = DeploymentQuery::default;
        let text = |text: &str| Some(text.to_owned());
        let environment = |pattern: &str| Some(Glob::new(pattern).unwrap().compile_matcher());
        for (query, expected) in [
            (all(), true),
            (DeploymentQuery { project_id: Some(7), ..all() }, true),
            (DeploymentQuery { project_id: Some(8), ..all() }, false),
            (DeploymentQuery { project: text("shop/web"), ..all() }, true),
            (DeploymentQuery { project: text("shop"), ..all() }, false),
            (DeploymentQuery { environment: environment("prod*"), ..all() }, true),
            (DeploymentQuery { environment: environment("prod"), ..all() }, false),
            (DeploymentQuery { tier: Some(Tier::Production), ..all() }, true),
            (DeploymentQuery { tier: Some(Tier::Other), ..all() }, false),
            (DeploymentQuery { agent: Some(AgentId(1)), ..all() }, true),
            (DeploymentQuery { agent: Some(AgentId(2)), ..all() }, false),
            (DeploymentQuery { commit: text("0a1b2c0"), ..all() }, true),
            (DeploymentQuery { commit: text("a1b2c00"), ..all() }, false),
            (DeploymentQuery { status: Some(DeploymentStatus::Unknown), ..all() }, true),
            (DeploymentQuery { status: Some(DeploymentStatus::Success), ..all() }, false),
        ] {
            assert_eq!(query.selects(&deployment), expected, "{query:?}");
        }
    }

    #[test]
    fn last_success_is_current_unless_a_later_result_is_not_known() {
        use DeploymentStatus::{Failed, Running, Success, Unknown};
        for (statuses, expected) in [
            (&[Success, Success][..], &[Some(true), Some(false)][..]),
            (&[Running, Failed, Success, Unknown], &[Some(false), Some(false), Some(true), Some(false)]),
            (&[Unknown, Success, Success], &[None, None, Some(false)]),
            (&[Failed, Unknown], &[Some(false), None]),
        ] {
            let newest_first = statuses.iter().zip((0..9).rev());
            let deployments: Vec<_> = newest_first.map(|(status, job)| with_status(job, *status)).collect();
            assert_eq!(current(&deployments), expected, "{statuses:?}");
        }
        let elsewhere = Deployment { environment: "staging".into(), ..with_status(1, Success) };
        assert_eq!(current(&[with_status(2, Success), elsewhere]), [Some(true); 2]);
    }

    #[test]
    fn job_runs_for_a_day_at_most_if_its_end_is_not_known() {
        let running = with_status(1, DeploymentStatus::Running);
        let later = |hours: u64| {
            let now = running.time + Duration::from_secs(hours * 3600);
            forget_running(running.clone(), now).facts.status
        };
        assert_eq!((later(23), later(25)), (DeploymentStatus::Running, DeploymentStatus::Unknown));
    }

    /// Results of jobs, of which the one with the number 1 has succeeded.
    #[derive(Debug, Default)]
    struct Results(Mutex<Vec<u64>>);

    impl JobResults for Results {
        fn facts<'a>(
            &'a self,
            deployment: &'a Deployment,
        ) -> BoxFuture<'a, Option<environments_wire::JobFacts>> {
            self.0.lock().push(deployment.job);
            let facts = DeploymentFacts { status: DeploymentStatus::Success, ..DeploymentFacts::default() };
            let found = environments_wire::JobFacts { facts, ..Default::default() };
            Box::pin(std::future::ready((deployment.job == 1).then_some(found)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn result_of_a_job_is_asked_for_until_it_is_known() {
        let results = Arc::new(Results::default());
        let deployments = Deployments::new(None, Some(Arc::clone(&results) as Arc<dyn JobResults>));
        for job in [1, 2] {
            deployments.record(deployment(job)).await.unwrap();
        }
        for asked in [vec![2, 1], vec![2]] {
            let list = deployments.list().await.unwrap();
            assert_eq!(list[1].facts.status, DeploymentStatus::Success);
            assert!(list[1].commit.is_some(), "it stays");
            assert_eq!(std::mem::take(&mut *results.0.lock()), asked);
        }
    }

    /// Two versions of kas share the records.
    #[test]
    fn recorded_deployment_is_read_and_written() {
        let recorded = include_bytes!("../../../../store/tests/recorded/0.1/deployment.json");
        let deployments = parsed(&[recorded.to_vec()]);
        assert_eq!((jobs(&deployments), deployments[0].tier), (vec![4711], Tier::Development));
        let [mut then, now] =
            [serde_json::from_slice(recorded), serde_json::to_value(&deployments[0])].map(Result::unwrap);
        for (key, value) in then.as_object().unwrap() {
            assert_eq!(now.get(key), Some(value), "{key}");
        }
        then["later"] = 1.into();
        assert_eq!(parsed(&[then.to_string().into_bytes()]), deployments);
    }

    #[test]
    fn recorded_deployment_with_facts_is_read_and_written() {
        let recorded = include_bytes!("../../../../store/tests/recorded/0.1/deployment-with-facts.json");
        let deployments = parsed(&[recorded.to_vec()]);
        assert_eq!(deployments[0].facts.status, DeploymentStatus::Success);
        let [then, now]: [serde_json::Value; 2] =
            [serde_json::from_slice(recorded), serde_json::to_value(&deployments[0])].map(Result::unwrap);
        for (key, value) in then.as_object().unwrap() {
            assert_eq!(now.get(key), Some(value), "{key}");
        }
    }

    #[test]
    fn unusable_records_are_ignored() {
        let good = serde_json::to_vec(&deployment(5)).unwrap();
        let long = [&b"{\"job\":"[..], &vec![b'1'; MAX_RECORD]].concat();
        let records = [b"garbage".to_vec(), good.clone(), b"{}".to_vec(), long, vec![0xff], good];
        assert_eq!(jobs(&parsed(&records)), [5]);
    }

    #[test]
    fn replaced_record_stays_in_its_place_and_a_long_one_has_no_facts() {
        let records = [1, 3, 2].map(|job| serialize(&deployment(job)).into_bytes());
        assert_eq!(jobs(&parsed(&records)), [3, 2, 1]);
        let facts = DeploymentFacts { author: Some("a".repeat(MAX_RECORD)), ..DeploymentFacts::default() };
        let long = serialize(&Deployment { facts, ..deployment(5) });
        assert_eq!(parsed(&[long.into_bytes()]), [deployment(5)]);
    }
}

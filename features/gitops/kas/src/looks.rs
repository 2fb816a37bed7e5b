//! Looks at the newest commits of repositories: all agents of a replica share them, and so do all replicas with one Redis.

use std::{sync::Arc, time::Duration};

use git::{Commit, Repository, RepositoryError};
use kas_core::throttle::Throttle;
use sha2::{Digest as _, Sha256};
use store::redis::{RedisStore, SharedLook};
use tokio::time::{Instant, sleep};

use super::metrics::GitopsMetrics;

/// The longest time since this replica's own look for which it believes the looks of others. Whoever can write to Redis can
/// delay commits by so much.
const MAX_TRUST: Duration = Duration::from_secs(600);
/// The time between two reads of the record while another replica looks, and the most reads.
const RUNNING: (Duration, u32) = (Duration::from_millis(200), 30);
/// The length of the digests in Redis.
const DIGEST: usize = 16;

/// A reference of a repository, which all agents look up together.
#[derive(Debug)]
pub(super) struct FollowedReference {
    /// The repository, its version and the names of its credentials.
    pub(super) source: String,
    pub(super) repository: Arc<dyn Repository>,
    /// The id of the project in GitLab, if that is where the repository is.
    pub(super) gitlab_project: Option<u64>,
    /// The kind of version that is followed without a configured one: `branch`, or `artifact`.
    pub(super) kind: &'static str,
    /// The limit of looks at the server; a repository of this machine has none.
    pub(super) throttle: Option<Arc<Throttle>>,
    /// The looks of other replicas, if they are of use.
    pub(super) shared: Option<SharedLooks>,
    pub(super) metrics: GitopsMetrics,
    #[expect(
        clippy::disallowed_types,
        reason = "agents that look at the same time wait for one exchange, which has a time limit"
    )]
    pub(super) last: tokio::sync::Mutex<Option<LastLook>>,
}

/// The record in Redis of one reference, as read with one credential.
#[derive(Debug)]
pub(super) struct SharedLooks {
    redis: RedisStore,
    key: [u8; DIGEST],
}

/// The result of this replica's last look at a reference.
#[derive(Clone, Debug)]
pub(super) struct LastLook {
    /// The time of this replica's last look.
    looked: Instant,
    /// The time at which the result was still the newest one. Looks of other replicas count.
    confirmed: Instant,
    found: Result<Option<Commit>, RepositoryError>,
}

/// The decision whether [`LastLook`] is recent enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// It is recent enough.
    Use,
    /// The look of another replica may confirm it.
    Confirm,
    /// This replica has to look.
    Look,
}

impl LastLook {
    /// Decides on what an agent needs that wants the commit as it was at most `age` before `now`.
    fn decide(&self, age: Duration, now: Instant) -> Decision {
        // After a push, only a look that begins later is of use.
        let others = !age.is_zero() && self.found.is_ok() && now < self.looked + MAX_TRUST;
        match self.confirmed + age >= now {
            true => Decision::Use,
            false if others => Decision::Confirm,
            false => Decision::Look,
        }
    }
}

impl FollowedReference {
    /// Describes the version that is followed without a configured one.
    pub(super) fn describe(&self, branch: &str) -> String {
        format!("{} {branch}", self.kind)
    }

    /// Returns the full name of a branch, or of the tag of an artifact.
    pub(super) fn reference(&self, name: &str) -> String {
        let kind = if self.kind == "branch" { "heads" } else { "tags" };
        format!("refs/{kind}/{name}")
    }

    /// Returns the newest commit, as it was at most `age` ago.
    ///
    /// # Errors
    ///
    /// The repository cannot be reached, or does not have the reference.
    pub(super) async fn newest(&self, age: Duration) -> Result<Option<Commit>, RepositoryError> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some(known) = &mut *last {
            let decision = known.decide(age, asked);
            if decision == Decision::Use || decision == Decision::Confirm && self.confirm(known, age).await {
                return known.found.clone();
            }
        }
        if let Some(throttle) = &self.throttle
            && throttle.wait().await
        {
            self.metrics.delayed_looks.inc();
        }
        let found = self.repository.resolve().await;
        let now = Instant::now();
        self.metrics.count_look(match (&found, last.as_ref().map(|last| &last.found)) {
            (Err(_), _) => "failed",
            (Ok(found), Some(Ok(before))) if found == before => "unchanged",
            (Ok(_), _) => "changed",
        });
        *last = Some(LastLook { looked: now, confirmed: now, found: found.clone() });
        if let Some(shared) = &self.shared {
            shared.record(&found).await;
        }
        found
    }

    /// Returns whether another replica has seen the same in the last `age`. If not, this replica has to look.
    async fn confirm(&self, known: &mut LastLook, age: Duration) -> bool {
        let (Some(shared), Ok(found)) = (&self.shared, &known.found) else { return false };
        let Some((seen, age)) = shared.last(age).await else { return false };
        let confirmed = seen == shared.digest(found.as_ref());
        if confirmed {
            let now = Instant::now();
            known.confirmed = now.checked_sub(age).map_or(known.confirmed, |at| at.max(known.confirmed));
            self.metrics.count_look("shared");
        }
        confirmed
    }
}

impl SharedLooks {
    /// Returns the record of a source. `source` is its URL, its version and the names of its credentials.
    pub(super) fn new(redis: RedisStore, source: &str) -> Self {
        Self { redis, key: digest([source.as_bytes()]) }
    }

    /// Returns what another replica has found at most `age` ago, and how long ago, or `None` if this replica should look itself.
    async fn last(&self, age: Duration) -> Option<([u8; DIGEST], Duration)> {
        let (pause, reads) = RUNNING;
        for _ in 0..reads {
            match self.redis.claim_look(self.key, age).await {
                Ok(SharedLook::Ended { age, found }) => return Some((found?, age)),
                Ok(SharedLook::Running) => sleep(pause).await,
                Ok(SharedLook::Claimed) | Err(_) => return None,
            }
        }
        None
    }

    async fn record(&self, found: &Result<Option<Commit>, RepositoryError>) {
        let digest = found.as_ref().ok().map(|commit| self.digest(commit.as_ref()));
        if let Err(error) = self.redis.record_look(self.key, digest).await {
            tracing::debug!(%error, "other replicas do not learn of a look at a repository");
        }
    }

    /// Returns the digest of what a look has found. It is of no use for another reference.
    fn digest(&self, commit: Option<&Commit>) -> [u8; DIGEST] {
        match commit {
            Some(Commit { id, branch }) => digest([&self.key, id.as_str().as_bytes(), branch.as_bytes()]),
            None => digest([&self.key[..]]),
        }
    }
}

/// Returns the beginning of the SHA-256 of texts without a zero byte.
fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; DIGEST] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
        hash.update([0]);
    }
    let hash: [u8; 32] = hash.finalize().into();
    *hash.first_chunk().expect("a hash of 32 bytes")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use futures_util::{future::BoxFuture, future::join_all};
    use git::{CommitId, FileSelection, SelectedFiles};
    use proto::{AgentName, ReplicaId};
    use store::{
        Replica,
        redis::{RedisAddress, RedisServers, RedisSettings},
    };
    use testing::redis::RedisServer;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    const AGE: Duration = Duration::from_secs(10);
    const NEVER: &str = "looks read no files";

    /// A repository that counts the looks at it.
    #[derive(Debug, Default)]
    struct CountedRepository {
        commit: AtomicU64,
        looks: AtomicU64,
    }

    impl CountedRepository {
        fn looks(&self) -> u64 {
            self.looks.swap(0, Relaxed)
        }
    }

    impl Repository for CountedRepository {
        fn resolve(&self) -> BoxFuture<'_, Result<Option<Commit>, RepositoryError>> {
            Box::pin(async {
                self.looks.fetch_add(1, Relaxed);
                tokio::task::yield_now().await;
                match self.commit.load(Relaxed) {
                    u64::MAX => Err(RepositoryError::Unavailable("gone".to_owned())),
                    commit => Ok(Some(Commit {
                        id: format!("{commit:040x}").parse().unwrap(),
                        branch: "main".to_owned(),
                    })),
                }
            })
        }

        fn read_file<'a>(
            &'a self,
            _: &'a CommitId,
            _: &'a str,
            _: usize,
        ) -> BoxFuture<'a, Result<Option<Vec<u8>>, RepositoryError>> {
            panic!("{NEVER}")
        }

        fn read_files<'a>(
            &'a self,
            _: &'a CommitId,
            _: &'a Arc<FileSelection>,
        ) -> BoxFuture<'a, Result<SelectedFiles, RepositoryError>> {
            panic!("{NEVER}")
        }

        fn list_agents<'a>(
            &'a self,
            _: &'a CommitId,
        ) -> BoxFuture<'a, Result<Vec<AgentName>, RepositoryError>> {
            panic!("{NEVER}")
        }
    }

    /// One replica that follows the repository.
    struct TestReplica {
        followed: FollowedReference,
        _sync: AbortOnDropHandle<()>,
    }

    impl TestReplica {
        async fn joined(server: &RedisServer, repository: &Arc<CountedRepository>, source: &str) -> Self {
            let settings = RedisSettings {
                servers: RedisServers::Single(RedisAddress::Unix(server.socket())),
                tls: None,
                username: None,
                password_file: None,
                database: 0,
                prefix: "kas".into(),
                fleet: "blue".into(),
                dial_timeout: Duration::from_secs(5),
                response_timeout: Duration::from_secs(2),
                urls: None,
                records: None,
            };
            let replica = Replica { id: ReplicaId::random(), url: "http://127.0.0.1:8155".into() };
            let (redis, sync) = RedisStore::new(settings, replica, "0.0.0");
            let sync = AbortOnDropHandle::new(tokio::spawn(sync.run(std::future::pending())));
            redis.wait_until_healthy().await;
            let followed = FollowedReference {
                source: source.to_owned(),
                repository: Arc::clone(repository) as _,
                gitlab_project: None,
                kind: "branch",
                throttle: None,
                shared: Some(SharedLooks::new(redis, source)),
                metrics: GitopsMetrics::register(&mut prometheus_client::registry::Registry::default()),
                last: Default::default(),
            };
            Self { followed, _sync: sync }
        }

        /// Returns the commit as the next look of an agent finds it: the last one was twice as long ago as it may be.
        async fn next(&self) -> u64 {
            if let Some(last) = &mut *self.followed.last.lock().await {
                last.confirmed = Instant::now().checked_sub(2 * AGE).unwrap();
            }
            self.newest(AGE).await
        }

        async fn newest(&self, age: Duration) -> u64 {
            let commit = self.followed.newest(age).await.unwrap().unwrap();
            u64::from_str_radix(commit.id.as_str(), 16).unwrap()
        }
    }

    #[tokio::test]
    async fn replicas_share_looks_until_there_is_a_new_commit() {
        let Some(mut server) = RedisServer::start_or_skip(&[]) else { return };
        let repository = Arc::new(CountedRepository::default());
        let here = TestReplica::joined(&server, &repository, "a").await;
        let there = TestReplica::joined(&server, &repository, "a").await;
        assert_eq!((here.next().await, there.next().await), (0, 0));
        assert_eq!(repository.looks(), 2, "no replica relies on what it has not seen itself");

        for _ in 0..3 {
            assert_eq!((here.next().await, there.next().await), (0, 0));
        }
        assert_eq!(repository.looks(), 0, "the look of the other replica is recent enough");

        // Nobody looked for long: one of a hundred agents at two replicas does.
        let shared = here.followed.shared.as_ref().unwrap();
        shared.redis.record_look(shared.key, None).await.unwrap();
        here.next().await;
        assert_eq!(repository.looks(), 1, "a failure confirms nothing");
        let agents = (0..50).flat_map(|_| [here.next(), there.next()]);
        join_all(agents).await;
        assert_eq!(repository.looks(), 0);

        repository.commit.store(1, Relaxed);
        assert_eq!(here.newest(Duration::ZERO).await, 1, "a push");
        assert_eq!(
            there.next().await,
            1,
            "the other replica looks itself, because it has not seen the commit"
        );
        assert_eq!(repository.looks(), 2);
        assert_eq!((here.next().await, there.next().await), (1, 1));
        assert_eq!(repository.looks(), 0);

        // A replica with another credential has another record.
        let other = TestReplica::joined(&server, &repository, "a other-password").await;
        other.next().await;
        assert_eq!(repository.looks(), 1);
        // Without Redis, each replica looks for itself.
        server.kill();
        assert_eq!((here.next().await, there.next().await), (1, 1));
        assert_eq!(repository.looks(), 2);
    }

    /// Test 62 of the attack list: somebody who can write to Redis claims that there is another commit, or that there is no new one.
    #[tokio::test]
    async fn forged_look_deploys_nothing_and_delays_for_a_limited_time() {
        let Some(server) = RedisServer::start_or_skip(&[]) else { return };
        let repository = Arc::new(CountedRepository::default());
        let replica = TestReplica::joined(&server, &repository, "a").await;
        let shared = replica.followed.shared.as_ref().unwrap();
        assert_eq!(replica.next().await, 0);
        let forged = Commit { id: format!("{:040x}", 7).parse().unwrap(), branch: "main".to_owned() };
        shared.record(&Ok(Some(forged))).await;
        assert_eq!(replica.next().await, 0, "the commit is that of the repository");
        assert_eq!(repository.looks(), 2);

        repository.commit.store(1, Relaxed);
        let old = Commit { id: format!("{:040x}", 0).parse().unwrap(), branch: "main".to_owned() };
        shared.record(&Ok(Some(old))).await;
        assert_eq!(replica.next().await, 0, "the record says that nothing is new");
        let last = replica.followed.last.lock().await.clone().unwrap();
        assert_eq!(
            last.decide(AGE, last.looked + MAX_TRUST),
            Decision::Look,
            "the replica looks itself then"
        );
        assert_eq!(replica.newest(Duration::ZERO).await, 1, "a push event needs no record");
    }

    #[test]
    fn only_a_look_that_succeeded_can_be_confirmed() {
        let now = Instant::now();
        let look = |found| LastLook { looked: now, confirmed: now, found };
        let later = now + AGE + Duration::from_millis(1);
        let failed = look(Err(RepositoryError::Unavailable("gone".to_owned())));
        assert_eq!(look(Ok(None)).decide(AGE, now + AGE), Decision::Use);
        assert_eq!(failed.decide(AGE, now + AGE), Decision::Use, "agents at the same time share a failure");
        assert_eq!(look(Ok(None)).decide(AGE, later), Decision::Confirm);
        assert_eq!(failed.decide(AGE, later), Decision::Look);
        assert_eq!(look(Ok(None)).decide(Duration::ZERO, later), Decision::Look, "a push");
        assert_eq!(look(Ok(None)).decide(AGE, now + MAX_TRUST), Decision::Look);
    }
}

//! Writes notes, one after the other: at one replica at a time, and one request to GitLab at a time.

use std::{collections::HashMap, sync::Arc, time::Duration};

use gitops_wire::{MergeRequest, MergeRequestApi, MergeRequestError, NotePlace};
use parking_lot::Mutex;
use proto::ReplicaId;
use store::{CURSOR_TTL, CursorRequest, EventPosition, Store};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout},
};

use super::{
    mac::SectionAuthenticator,
    note::{MARKER, NoteSection, replace_section},
};

/// The name of the claim. No webhook has a space in its name.
const CLAIM: &str = "merge request notes";
/// The time between two renewals of the claim, and the longest one of a renewal.
const RENEWAL: Duration = Duration::from_secs(CURSOR_TTL.as_secs() / 4);
/// The longest wait for the claim.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(120);
/// The time for the requests of one note.
const WRITE_TIMEOUT: Duration = Duration::from_secs(90);
/// The time after which another attempt to write is useful.
const BUSY: Duration = Duration::from_secs(2);
/// The time for which a list is used: a push wakes all agents and projects of a repository at the same time.
const LIST_AGE: Duration = Duration::from_secs(1);

/// Writes the notes of this replica.
#[derive(Debug)]
pub(crate) struct NoteWriter {
    api: Arc<dyn MergeRequestApi>,
    store: Arc<dyn Store>,
    replica: ReplicaId,
    turn: Semaphore,
    /// The last lists of merge requests by project and target branch.
    lists: Mutex<HashMap<(u64, String), RecentList>>,
}

/// The merge requests of a list, and the time at which kas has asked for it.
#[derive(Debug)]
struct RecentList {
    asked: Instant,
    list: Arc<[MergeRequest]>,
}

/// The note of a section, and the state of the merge request that the section is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoteTarget<'a> {
    pub(super) place: NotePlace,
    /// The target branch.
    pub(super) branch: &'a str,
    /// The head of the source branch.
    pub(super) commit: &'a str,
}

/// The result of a preview that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreviewResult {
    Created,
    Updated,
    /// The note has the text, the section is not needed, or the merge request is closed or has another head now.
    Unchanged,
    /// The source branch is in another project.
    Fork,
}

impl NoteWriter {
    pub(crate) fn new(api: Arc<dyn MergeRequestApi>, store: Arc<dyn Store>, replica: ReplicaId) -> Self {
        Self { api, store, replica, turn: Semaphore::new(1), lists: Mutex::default() }
    }

    /// Returns the open merge requests of a project into a branch.
    pub(super) async fn open_merge_requests(
        &self,
        project: u64,
        target: &str,
    ) -> Result<Arc<[MergeRequest]>, MergeRequestError> {
        // Another project may read the list while this one waits for its turn.
        let wanted = Instant::now();
        let _turn = self.acquire().await;
        self.list(project, target, wanted).await
    }

    /// Returns a list that was read at most [`LIST_AGE`] before a time. The caller has the turn.
    async fn list(
        &self,
        project: u64,
        target: &str,
        wanted: Instant,
    ) -> Result<Arc<[MergeRequest]>, MergeRequestError> {
        let (key, asked) = ((project, target.to_owned()), Instant::now());
        self.lists.lock().retain(|_, recent| recent.asked + LIST_AGE > wanted);
        if let Some(recent) = self.lists.lock().get(&key) {
            return Ok(Arc::clone(&recent.list));
        }
        let list: Arc<[MergeRequest]> = self.api.open_merge_requests(project, target).await?.into();
        self.lists.lock().insert(key, RecentList { asked, list: Arc::clone(&list) });
        Ok(list)
    }

    /// Writes a section of a note, unless the note has it, or the merge request has another head now. `check` completes with an error if
    /// nothing may be written any more.
    pub(super) async fn write(
        &self,
        target: NoteTarget<'_>,
        section: &NoteSection,
        check: impl Fn() -> Result<(), MergeRequestError>,
    ) -> Result<PreviewResult, MergeRequestError> {
        let _turn = self.acquire_claim().await?;
        let written = tokio::select! {
            written = timeout(WRITE_TIMEOUT, self.write_claimed(target, section, check)) => {
                written.unwrap_or_else(|_| Err(unavailable("GitLab takes too long")))
            }
            () = self.keep_claim() => Err(unavailable("the claim to write notes is lost")),
        };
        // Without an answer, the claim ends by itself.
        let released = self.store.event_cursor(CLAIM, self.replica, CursorRequest::Release);
        let _ = timeout(RENEWAL, released).await;
        written
    }

    async fn write_claimed(
        &self,
        NoteTarget { place, branch, commit }: NoteTarget<'_>,
        section: &NoteSection,
        check: impl Fn() -> Result<(), MergeRequestError>,
    ) -> Result<PreviewResult, MergeRequestError> {
        check()?;
        let open = self.list(place.project, branch, Instant::now()).await?;
        if !open.iter().any(|request| request.number == place.merge_request && request.commit == commit) {
            return Ok(PreviewResult::Unchanged);
        }
        let authenticator = SectionAuthenticator::new(self.api.note_key().await?, place);
        // The note may be deleted between the requests.
        for _ in 0..2 {
            let note = self.api.own_note(place, MARKER).await?;
            let body = note.as_ref().map(|note| &*note.body);
            let Some(text) = replace_section(body, section, &authenticator) else {
                return Ok(PreviewResult::Unchanged);
            };
            check()?;
            if self.api.write_note(place, note.as_ref().map(|note| note.id), &text).await? {
                return Ok(if note.is_some() { PreviewResult::Updated } else { PreviewResult::Created });
            }
        }
        Err(unavailable("the note was deleted while kas wrote it"))
    }

    /// Waits for its turn at this replica, and until no other replica has the claim.
    async fn acquire_claim(&self) -> Result<SemaphorePermit<'_>, MergeRequestError> {
        let begun = Instant::now();
        loop {
            let turn = self.acquire().await;
            if self.claim().await {
                return Ok(turn);
            }
            drop(turn);
            if begun.elapsed() > CLAIM_TIMEOUT {
                return Err(unavailable("another replica writes notes now, or Redis does not answer"));
            }
            sleep(Duration::from_millis(rand::random_range(300..1500))).await;
        }
    }

    async fn acquire(&self) -> SemaphorePermit<'_> {
        self.turn.acquire().await.expect("the semaphore is never closed")
    }

    /// Claims the notes, or renews the claim. Returns false if another replica has it.
    async fn claim(&self) -> bool {
        let request = CursorRequest::Claim(EventPosition::START);
        let claimed = timeout(RENEWAL, self.store.event_cursor(CLAIM, self.replica, request)).await;
        matches!(claimed, Ok(Ok(Some(_))))
    }

    /// Renews the claim until it is lost.
    async fn keep_claim(&self) {
        loop {
            sleep(RENEWAL).await;
            if !self.claim().await {
                return;
            }
        }
    }
}

fn unavailable(message: &str) -> MergeRequestError {
    MergeRequestError::Unavailable { message: message.to_owned(), retry_after: BUSY }
}

#[cfg(test)]
mod tests {
    use futures_util::future::BoxFuture;
    use gitops_wire::{MergeRequestNote, NoteKey};
    use proto::AgentId;
    use store::MemoryStore;
    use tokio_util::task::AbortOnDropHandle;

    use super::{super::note::SectionSubject, *};

    const PLACE: NotePlace = NotePlace { project: 7, merge_request: 12 };

    const TARGET: NoteTarget<'static> = NoteTarget { place: PLACE, branch: "main", commit: "head" };

    /// A server that takes some time for each request about a note.
    #[derive(Debug)]
    struct SlowServer {
        lists: Mutex<u32>,
        list_delay: Mutex<Duration>,
        head: Mutex<&'static str>,
        /// The next note that kas has read is deleted before kas writes it.
        deletes: Mutex<bool>,
        delay: Mutex<Duration>,
        notes: Mutex<Vec<String>>,
    }

    impl SlowServer {
        fn new(seconds: u64) -> Arc<Self> {
            let delay = Mutex::new(Duration::from_secs(seconds));
            Arc::new(Self {
                lists: Mutex::default(),
                list_delay: Mutex::default(),
                head: Mutex::new("head"),
                deletes: Mutex::default(),
                delay,
                notes: Mutex::default(),
            })
        }

        async fn answer(&self) {
            let delay = *self.delay.lock();
            sleep(delay).await;
        }
    }

    impl MergeRequestApi for SlowServer {
        fn open_merge_requests<'a>(
            &'a self,
            _: u64,
            _: &'a str,
        ) -> BoxFuture<'a, Result<Vec<MergeRequest>, MergeRequestError>> {
            *self.lists.lock() += 1;
            let (number, delay) = (PLACE.merge_request, *self.list_delay.lock());
            let commit = (*self.head.lock()).to_owned();
            Box::pin(async move {
                sleep(delay).await;
                Ok(vec![MergeRequest { number, commit, is_of_fork: false }])
            })
        }

        fn note_key(&self) -> BoxFuture<'_, Result<NoteKey, MergeRequestError>> {
            Box::pin(async { Ok(NoteKey::new([1; 32])) })
        }

        fn own_note<'a>(
            &'a self,
            place: NotePlace,
            _: &'a str,
        ) -> BoxFuture<'a, Result<Option<MergeRequestNote>, MergeRequestError>> {
            assert_eq!(place, PLACE);
            Box::pin(async move {
                let body = self.notes.lock().first().cloned();
                self.answer().await;
                Ok(body.map(|body| MergeRequestNote { id: 0, body }))
            })
        }

        fn write_note<'a>(
            &'a self,
            _: NotePlace,
            id: Option<u64>,
            body: &'a str,
        ) -> BoxFuture<'a, Result<bool, MergeRequestError>> {
            Box::pin(async move {
                self.answer().await;
                let mut notes = self.notes.lock();
                if std::mem::take(&mut *self.deletes.lock()) {
                    notes.clear();
                    return Ok(false);
                }
                match id {
                    None => notes.push(body.to_owned()),
                    Some(id) => body.clone_into(&mut notes[id as usize]),
                }
                Ok(true)
            })
        }
    }

    fn section(agent: u64, commit: &str) -> NoteSection {
        let name = "prod".parse().unwrap();
        let subject = SectionSubject { agent: (AgentId(agent), &name), project: "shop", commit };
        subject.diff("**1 to change**\n", false)
    }

    async fn write(writer: &NoteWriter, section: &NoteSection) -> Result<PreviewResult, MergeRequestError> {
        writer.write(TARGET, section, || Ok(())).await
    }

    fn replicas(server: &Arc<SlowServer>) -> [NoteWriter; 2] {
        let store = Arc::new(MemoryStore::default());
        [1, 2].map(|number| {
            let replica = ReplicaId::from_bytes([number; 16]);
            NoteWriter::new(Arc::clone(server) as _, Arc::clone(&store) as _, replica)
        })
    }

    #[tokio::test(start_paused = true)]
    async fn two_replicas_and_two_agents_write_one_note() {
        let server = SlowServer::new(1);
        let [here, there] = replicas(&server);
        let (first, same, other) = (section(1, "a"), section(1, "a"), section(2, "a"));
        let (created, waited, second) =
            tokio::join!(write(&here, &first), write(&there, &same), write(&here, &other));
        assert_eq!((created, second), (Ok(PreviewResult::Created), Ok(PreviewResult::Updated)));
        assert_eq!(waited, Ok(PreviewResult::Unchanged), "it has waited for the claim");
        assert_eq!(write(&there, &same).await, Ok(PreviewResult::Unchanged));
        assert_eq!(write(&there, &section(1, "b")).await, Ok(PreviewResult::Updated));
        let [note] = &**server.notes.lock() else { panic!("{server:?}") };
        assert!(note.contains("`shop` at `b`") && note.contains("`shop` at `a`"), "{note}");
    }

    #[tokio::test(start_paused = true)]
    async fn projects_of_a_repository_share_a_list() {
        let server = SlowServer::new(0);
        let [writer, _] = replicas(&server);
        for (project, target) in [(7, "main"), (7, "main"), (7, "next"), (8, "main"), (7, "main")] {
            writer.open_merge_requests(project, target).await.unwrap();
        }
        assert_eq!(*server.lists.lock(), 3);
        sleep(LIST_AGE).await;
        writer.open_merge_requests(7, "main").await.unwrap();
        assert_eq!(*server.lists.lock(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_replica_keeps_its_claim_and_a_dead_one_does_not() {
        let server = SlowServer::new(60);
        let [here, there] = replicas(&server);
        let slow = AbortOnDropHandle::new(tokio::spawn(async move { write(&here, &section(1, "a")).await }));
        for _ in 0..3 {
            sleep(CURSOR_TTL).await;
            assert!(!there.claim().await);
        }
        drop(slow);
        sleep(CURSOR_TTL).await;
        *server.delay.lock() = Duration::ZERO;
        assert_eq!(write(&there, &section(1, "b")).await, Ok(PreviewResult::Created));
    }

    #[tokio::test(start_paused = true)]
    async fn list_of_a_slow_server_serves_all_that_wait_for_it() {
        let server = SlowServer::new(0);
        *server.list_delay.lock() = Duration::from_secs(10);
        let [writer, _] = replicas(&server);
        let list = || writer.open_merge_requests(7, "main");
        let (first, second) = tokio::join!(list(), list());
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(*server.lists.lock(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn note_that_is_deleted_meanwhile_is_created_again() {
        let server = SlowServer::new(0);
        let [writer, _] = replicas(&server);
        assert_eq!(write(&writer, &section(1, "a")).await, Ok(PreviewResult::Created));
        *server.deletes.lock() = true;
        assert_eq!(write(&writer, &section(1, "b")).await, Ok(PreviewResult::Created));
        assert_eq!(server.notes.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn newer_head_and_disabled_agent_have_no_note() {
        let server = SlowServer::new(0);
        let [writer, _] = replicas(&server);
        let disabled = || Err(unavailable("disabled"));
        assert_eq!(
            writer.write(TARGET, &section(1, "a"), disabled).await,
            disabled().map(|()| PreviewResult::Created)
        );
        *server.head.lock() = "newer";
        assert_eq!(write(&writer, &section(1, "a")).await, Ok(PreviewResult::Unchanged));
        assert!(server.notes.lock().is_empty());
    }
}

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

use super::note::{MARKER, NoteSection, replace_section};

/// The name of the claim. No webhook has a space in its name.
const CLAIM: &str = "merge request notes";
/// The time between two renewals of the claim, and the longest one of a renewal.
const RENEWAL: Duration = Duration::from_secs(CURSOR_TTL.as_secs() / 4);
/// The time after which another attempt to get the claim is useful.
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

/// The result of a preview that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreviewResult {
    Created,
    Updated,
    /// The note has the text, or there is nothing to say.
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
        let (_turn, key) = (self.acquire().await, (project, target.to_owned()));
        let asked = Instant::now();
        self.lists.lock().retain(|_, recent| recent.asked + LIST_AGE > asked);
        if let Some(recent) = self.lists.lock().get(&key) {
            return Ok(Arc::clone(&recent.list));
        }
        let list: Arc<[MergeRequest]> = self.api.open_merge_requests(project, target).await?.into();
        self.lists.lock().insert(key, RecentList { asked, list: Arc::clone(&list) });
        Ok(list)
    }

    /// Writes a section of a note, unless the note has it.
    pub(super) async fn write(
        &self,
        place: NotePlace,
        section: &NoteSection,
    ) -> Result<PreviewResult, MergeRequestError> {
        let _turn = self.acquire().await;
        if !self.claim().await {
            return Err(unavailable("another replica writes notes now, or Redis does not answer"));
        }
        let written = tokio::select! {
            written = self.write_claimed(place, section) => written,
            () = self.keep_claim() => Err(unavailable("the claim to write notes is lost")),
        };
        // Without an answer, the claim ends by itself.
        let released = self.store.event_cursor(CLAIM, self.replica, CursorRequest::Release);
        let _ = timeout(RENEWAL, released).await;
        written
    }

    async fn write_claimed(
        &self,
        place: NotePlace,
        section: &NoteSection,
    ) -> Result<PreviewResult, MergeRequestError> {
        let note = self.api.own_note(place, MARKER).await?;
        let Some(text) = replace_section(note.as_ref().map(|note| &*note.body), section) else {
            return Ok(PreviewResult::Unchanged);
        };
        self.api.write_note(place, note.as_ref().map(|note| note.id), &text).await?;
        Ok(if note.is_some() { PreviewResult::Updated } else { PreviewResult::Created })
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
    use gitops_wire::MergeRequestNote;
    use proto::AgentId;
    use store::MemoryStore;
    use tokio_util::task::AbortOnDropHandle;

    use super::{super::note::SectionSubject, *};

    const PLACE: NotePlace = NotePlace { project: 7, merge_request: 12 };

    /// A server that takes some time for each request.
    #[derive(Debug)]
    struct SlowServer {
        lists: Mutex<u32>,
        delay: Mutex<Duration>,
        notes: Mutex<Vec<String>>,
    }

    impl SlowServer {
        fn new(seconds: u64) -> Arc<Self> {
            let delay = Mutex::new(Duration::from_secs(seconds));
            Arc::new(Self { lists: Mutex::default(), delay, notes: Mutex::default() })
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
            Box::pin(async { Ok(Vec::new()) })
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
        ) -> BoxFuture<'a, Result<(), MergeRequestError>> {
            Box::pin(async move {
                self.answer().await;
                let mut notes = self.notes.lock();
                match id {
                    None => notes.push(body.to_owned()),
                    Some(id) => body.clone_into(&mut notes[id as usize]),
                }
                Ok(())
            })
        }
    }

    fn section(agent: u64, commit: &str) -> NoteSection {
        let name = "prod".parse().unwrap();
        let subject = SectionSubject { agent: (AgentId(agent), &name), project: "shop", commit };
        subject.diff("**1 to change**\n", false)
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
        let (created, busy, second) =
            tokio::join!(here.write(PLACE, &first), there.write(PLACE, &same), here.write(PLACE, &other));
        assert_eq!((created, second), (Ok(PreviewResult::Created), Ok(PreviewResult::Updated)));
        assert!(matches!(busy, Err(MergeRequestError::Unavailable { .. })), "{busy:?}");
        assert_eq!(there.write(PLACE, &same).await, Ok(PreviewResult::Unchanged));
        assert_eq!(there.write(PLACE, &section(1, "b")).await, Ok(PreviewResult::Updated));
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
        let slow =
            AbortOnDropHandle::new(tokio::spawn(async move { here.write(PLACE, &section(1, "a")).await }));
        for _ in 0..3 {
            sleep(CURSOR_TTL).await;
            assert!(there.write(PLACE, &section(1, "b")).await.is_err());
        }
        drop(slow);
        sleep(CURSOR_TTL).await;
        *server.delay.lock() = Duration::ZERO;
        assert_eq!(there.write(PLACE, &section(1, "b")).await, Ok(PreviewResult::Created));
    }
}

//! The changes that a sync of a project would make, for a caller and with the rights of the caller.

use std::{sync::Arc, time::Duration};

use gitops_engine::{Engine, Fence, SourceFile, Stopped, SyncInput};
use http::HeaderMap;
use proto::{
    AgentId, Reason,
    gitops::{DiffLine, DiffRequest, DiffSummary, ObjectCounts, PreviewRequest},
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, timeout},
};

use super::{Gitops, now_millis, preview};
use crate::services::ServiceError;

/// The time of a diff of thousands of objects with a slow reader.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The time that a diff waits for others.
const WAIT: Duration = Duration::from_secs(30);
/// The lines that a slow reader may have unread.
const QUEUE: usize = 16;

/// Stops a diff when its time is over.
struct Deadline(Instant);

impl Fence for Deadline {
    fn check(&self) -> Result<Instant, Stopped> {
        if Instant::now() < self.0 { Ok(self.0) } else { Err(Stopped::TooLong) }
    }
}

/// Waits until a diff may begin: before its manifests are read, which need memory.
///
/// # Errors
///
/// Others take too long.
pub(super) async fn admit(gitops: &Gitops) -> Result<OwnedSemaphorePermit, ServiceError> {
    let permit = timeout(WAIT, Arc::clone(&gitops.diffs).acquire_owned()).await;
    let permit = permit.map_err(|_| {
        let what = "this pod of agentk makes other diffs at the moment; try again";
        ServiceError::new(Reason::TooManyRequests, what)
    })?;
    Ok(permit.expect("it is never closed"))
}

/// Starts a diff and returns its lines. It ends when nobody reads them any more.
///
/// # Errors
///
/// kas has no files for it, or the project does not exist.
pub(super) async fn run(
    gitops: Arc<Gitops>,
    project: String,
    request: DiffRequest,
    caller: &HeaderMap,
    permit: OwnedSemaphorePermit,
) -> Result<mpsc::Receiver<DiffLine>, ServiceError> {
    let DiffRequest { reference, directory, files } = request;
    let settings_only = files.is_some();
    let wanted = PreviewRequest { number: 0, project, reference, directory, settings_only };
    let (head, read) = preview::ask(&gitops, wanted).await?;
    let part = files.is_some();
    let posted = files.map(|files| {
        files.into_iter().map(|file| SourceFile { path: file.path, content: file.content.into() }).collect()
    });
    let files: Vec<SourceFile> = posted.unwrap_or(read);
    let cluster = match (gitops.cluster.acting_for(caller), head.settings.service_account()) {
        (Some(cluster), _) => cluster,
        (None, Some((namespace, name))) => gitops.cluster.acting_as(namespace, name),
        (None, None) => gitops.cluster.clone(),
    };
    let mut engine = Engine::new(cluster, gitops.leader.own_cluster().clone(), gitops.leader.namespace());
    let input = SyncInput {
        agent: gitops.leader.agent().unwrap_or(AgentId(0)),
        project: head.project,
        settings: head.settings,
        commit: head.commit.id.clone(),
        files: files.into(),
        approved: None,
        heal: true,
        gitlab_project: head.gitlab_project,
        waiting: Vec::new(),
        earlier: ObjectCounts::default(),
        now: now_millis(),
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let _permit = permit;
        let deadline = Instant::now() + TIMEOUT;
        let work = async {
            let summary = engine.diff(&input, part, &Deadline(deadline), &sender).await;
            let (reference, commit) = match part {
                true => (String::new(), None),
                false => (head.reference, Some(head.commit)),
            };
            // Fails if nobody reads any more.
            let end = DiffLine::End(DiffSummary { reference, commit, ..summary });
            let _ = sender.send_timeout(end, WAIT).await;
        };
        tokio::select! {
            () = work => {}
            // Nobody waits for the rest, which may be many requests.
            () = sender.closed() => {}
            // A reader that stops reading would hold the files for ever.
            () = tokio::time::sleep_until(deadline + Duration::from_secs(1)) => {}
        }
    });
    Ok(receiver)
}

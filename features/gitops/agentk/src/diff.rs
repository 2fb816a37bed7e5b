//! The changes that a sync of a project would make, for a caller and with the rights of the caller.

use std::{sync::Arc, time::Duration};

use agentk_core::services::{
    ServiceError,
    caller_permits::{CallerPermit, NoPermit},
    response::bad_request,
};
use bytes::{Bytes, BytesMut};
use gitops_engine::{Engine, SourceFile, SyncInput};
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use kube_cluster::{Fence, Stopped};
use proto::{
    AgentId, Reason,
    gitops::{DiffLine, DiffRequest, DiffSummary, ObjectCounts, PreviewRequest},
    impersonation::Identity,
};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, timeout},
};
use tunnel::Body;

use super::{Gitops, now_millis, preview};

/// The largest body of a request, and the most bytes of the bodies of all requests: those of as many diffs as may run.
const MAX_BODY: usize = 64 << 20;
pub(super) const MAX_BODIES: usize = 2 * MAX_BODY;
/// The time for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
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

/// A request whose diff may begin.
pub(super) struct AdmittedDiff {
    request: DiffRequest,
    /// The bytes of its manifests.
    bytes: CallerPermit,
    permit: OwnedSemaphorePermit,
}

/// Receives a request, and then waits until its diff may begin. A body that does not arrive holds no place of others: only the bytes that
/// have arrived count.
///
/// # Errors
///
/// The request is invalid, its body does not arrive in time, or other diffs take too long.
pub(super) async fn admit(gitops: &Gitops, request: Request<Body>) -> Result<AdmittedDiff, ServiceError> {
    let caller = Identity::of_request(request.headers());
    let mut bytes = gitops.diff_bodies.none(caller);
    let body = timeout(BODY_TIMEOUT, receive(request.into_body(), &mut bytes)).await;
    let body = body.map_err(|_| bad_request("the manifests were not received in time"))??;
    let request = serde_json::from_slice(&body).map_err(|error| bad_request(&error.to_string()))?;
    let permit = timeout(WAIT, Arc::clone(&gitops.diffs).acquire_owned()).await;
    let permit = permit.map_err(|_| {
        let what = "this pod of agentk makes other diffs at the moment; try again";
        ServiceError::new(Reason::TooManyRequests, what)
    })?;
    Ok(AdmittedDiff { request, bytes, permit: permit.expect("it is never closed") })
}

/// Receives a body, whose bytes count as they arrive.
async fn receive(mut body: Body, bytes: &mut CallerPermit) -> Result<Bytes, ServiceError> {
    let mut received = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| bad_request(&error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if received.len() + data.len() > MAX_BODY {
            return Err(bad_request(&format!("the manifests have more than {} MiB", MAX_BODY >> 20)));
        }
        bytes.try_grow(data.len()).map_err(|reason| {
            let whose = match reason {
                NoPermit::All => "of other callers",
                NoPermit::Share(_) => "of the same caller",
            };
            let what = format!("this pod of agentk has manifests {whose} for diffs at the moment; try again");
            ServiceError::new(Reason::TooManyRequests, what)
        })?;
        received.extend_from_slice(&data);
    }
    Ok(received.freeze())
}

/// Starts a diff and returns its lines. It ends when nobody reads them any more.
///
/// # Errors
///
/// kas has no files for it, or the project does not exist.
pub(super) async fn run(
    gitops: Arc<Gitops>,
    project: String,
    admitted: AdmittedDiff,
    caller: &HeaderMap,
) -> Result<mpsc::Receiver<DiffLine>, ServiceError> {
    let AdmittedDiff { request, bytes, permit } = admitted;
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
        let _permits = (bytes, permit);
        let deadline = Instant::now() + TIMEOUT;
        let work = async {
            let summary = engine.diff(&input, part, &Deadline(deadline), &sender).await;
            let (reference, commit) =
                if part { (String::new(), None) } else { (head.reference, Some(head.commit)) };
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

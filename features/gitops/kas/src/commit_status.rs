//! The results of syncs as statuses of commits in GitLab.
//!
//! ```text
//!   events of agentk ─► StatusQueue: one status per agent, project and commit ─► report: one request at a time ─► GitLab
//! ```
//!
//! A status is only set in the project with the configuration of the agent. Whoever writes that configuration can name any public
//! project, and must not be able to set statuses there with the token of the operator.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use git::CommitId;
use gitops_wire::{
    CommitState, CommitStatus, CommitStatusApi, CommitStatusError, MAX_DESCRIPTION, StatusPlace,
};
use parking_lot::Mutex;
use proto::{
    AgentName,
    gitops::{ProjectState, SyncEvent, SyncEventKind},
};
use tokio::{sync::Notify, time::sleep};

use super::metrics::GitopsMetrics;

/// The most statuses that wait for GitLab, and the most that are remembered.
const MAX_STATUSES: usize = 10_000;
/// The first and the longest wait after a failure of GitLab, beyond those of a single request.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// A commit of a project that an agent applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StatusTarget {
    pub(super) agent: AgentName,
    /// The id of the project in GitLab.
    pub(super) project: u64,
    /// The name among the projects of the agent, if it has one.
    pub(super) name: Option<String>,
    pub(super) commit: CommitId,
}

/// An agent, the id of a project in GitLab, and the name of the agent's project.
type StatusKey = (AgentName, u64, Option<String>);

/// Sets the statuses of commits, and never makes a sync wait.
#[derive(Debug)]
pub(super) struct CommitStatuses {
    api: Arc<dyn CommitStatusApi>,
    queue: Mutex<StatusQueue>,
    queued: Notify,
    metrics: GitopsMetrics,
}

/// The statuses that GitLab should have, and those that it has.
#[derive(Debug, Default)]
struct StatusQueue {
    order: VecDeque<StatusTarget>,
    wanted: HashMap<StatusTarget, CommitStatus>,
    /// The last status of each agent in each project, as far as this replica knows.
    known: HashMap<StatusKey, (CommitId, CommitStatus)>,
}

impl StatusTarget {
    fn name(&self) -> String {
        match &self.name {
            Some(name) => format!("agentk/{}/{name}", self.agent),
            None => format!("agentk/{}", self.agent),
        }
    }

    fn key(&self) -> StatusKey {
        (self.agent.clone(), self.project, self.name.clone())
    }
}

impl CommitStatuses {
    pub(super) fn new(api: Arc<dyn CommitStatusApi>, metrics: GitopsMetrics) -> Self {
        Self { api, queue: Mutex::default(), queued: Notify::new(), metrics }
    }

    /// Notes what an event says about a commit.
    pub(super) fn note(&self, target: &StatusTarget, event: &SyncEvent) {
        if let Some(status) = status_of(event) {
            self.put(target, status);
        }
    }

    /// Notes that the files of a commit cannot be read.
    pub(super) fn fail(&self, target: &StatusTarget, error: &str) {
        self.put(target, new_status(CommitState::Failed, error));
    }

    /// Notes that a newer commit has replaced one.
    pub(super) fn supersede(&self, target: &StatusTarget) {
        self.put(target, new_status(CommitState::Canceled, "a newer commit has replaced it"));
    }

    fn put(&self, target: &StatusTarget, status: CommitStatus) {
        if !self.queue.lock().put(target.clone(), status) {
            self.metrics.count_commit_status("dropped");
        }
        self.queued.notify_one();
    }

    /// Sends the statuses, one after the other, so that they never take more than one request to GitLab at a time. The future never
    /// completes.
    pub(super) async fn run(&self) {
        let mut backoff = BACKOFF.0;
        loop {
            let Some((target, status, known)) = self.queue.lock().first() else {
                self.queued.notified().await;
                continue;
            };
            match self.send(&target, &status, known).await {
                Ok(sent) => {
                    backoff = BACKOFF.0;
                    if sent {
                        self.metrics.count_commit_status("sent");
                    }
                }
                Err(error @ CommitStatusError::Refused(_)) => {
                    self.metrics.count_commit_status("refused");
                    tracing::warn!(
                        agent.name = %target.agent, project = target.project, commit = %target.commit, %error,
                        "GitLab refuses the status of a commit: the token (gitlab.commit_status_token_file) needs the scope api and \
                         the role Developer"
                    );
                }
                Err(error @ CommitStatusError::Unavailable(_)) => {
                    self.metrics.count_commit_status("failed");
                    tracing::debug!(project = target.project, %error, "the status of a commit is sent again later");
                    sleep(backoff.mul_f64(rand::random_range(0.8..1.2))).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                    continue;
                }
            }
            self.queue.lock().finish(target, status);
        }
    }

    /// Sends a status unless GitLab has it. Returns whether it was sent.
    async fn send(
        &self,
        target: &StatusTarget,
        status: &CommitStatus,
        known: Option<CommitStatus>,
    ) -> Result<bool, CommitStatusError> {
        let name = target.name();
        let place = StatusPlace { project: target.project, commit: target.commit.as_str(), name: &name };
        // Another replica, or this one before a restart, may have sent it.
        let known = match known {
            None => self.api.get(place).await?,
            known => known,
        };
        if !replaces(status, known.as_ref()) {
            return Ok(false);
        }
        self.api.set(place, status).await?;
        Ok(true)
    }
}

impl StatusQueue {
    /// Replaces the status of a commit that waits. Returns false if too many others wait.
    fn put(&mut self, target: StatusTarget, status: CommitStatus) -> bool {
        let waiting = self.wanted.get(&target);
        // If neither is known, the status in GitLab is read before the new one is sent.
        let current = waiting.or_else(|| self.known(&target));
        if current.is_some() && !replaces(&status, current) {
            return true;
        }
        if waiting.is_none() {
            if self.order.len() >= MAX_STATUSES {
                return false;
            }
            self.order.push_back(target.clone());
        }
        self.wanted.insert(target, status);
        true
    }

    /// Returns the first status that waits, and the one that GitLab has instead of it, if that is known.
    fn first(&self) -> Option<(StatusTarget, CommitStatus, Option<CommitStatus>)> {
        let target = self.order.front()?;
        Some((target.clone(), self.wanted.get(target)?.clone(), self.known(target).cloned()))
    }

    /// Notes that the first status was sent, or is not sent any more. A newer one of the same commit is sent next.
    fn finish(&mut self, target: StatusTarget, status: CommitStatus) {
        if self.wanted.get(&target) == Some(&status) {
            self.wanted.remove(&target);
            self.order.retain(|waiting| *waiting != target);
        }
        if self.known.len() >= MAX_STATUSES {
            self.known.clear();
        }
        self.known.insert(target.key(), (target.commit, status));
    }

    fn known(&self, target: &StatusTarget) -> Option<&CommitStatus> {
        let (commit, status) = self.known.get(&target.key())?;
        (*commit == target.commit).then_some(status)
    }
}

/// Returns whether a status of a commit replaces the one that it has.
fn replaces(status: &CommitStatus, current: Option<&CommitStatus>) -> bool {
    match (status.state, current) {
        (_, Some(current)) if current == status => false,
        // A commit that is applied again, after a restart of agentk, was applied before.
        (CommitState::Pending, current) => current.is_none(),
        (CommitState::Success, Some(current)) => current.state != CommitState::Success,
        (CommitState::Canceled, current) => {
            current.is_some_and(|current| current.state == CommitState::Pending)
        }
        _ => true,
    }
}

/// Returns the status that an event is a reason for. A sync that was stopped has no state.
fn status_of(event: &SyncEvent) -> Option<CommitStatus> {
    use ProjectState::{Contested, Degraded, Empty, OutOfSync, Pending, Synced};

    let state = match (event.event, event.state?) {
        (SyncEventKind::Planned, _) => CommitState::Pending,
        // A dry run ends with `Pending` or `OutOfSync`: it has found no error.
        (SyncEventKind::Finished, Synced | Empty | Degraded | OutOfSync | Contested | Pending) => {
            CommitState::Success
        }
        (
            SyncEventKind::Finished,
            ProjectState::Failed | ProjectState::Held | ProjectState::InventoryLost,
        ) => CommitState::Failed,
        _ => return None,
    };
    let description = match &event.error {
        Some(error) if state == CommitState::Failed => {
            let file = if error.file.is_empty() { String::new() } else { format!("{}: ", error.file) };
            let object = error.object.as_ref().map(|object| format!("{object}: ")).unwrap_or_default();
            format!("{file}{object}{}", error.message)
        }
        _ => event.message.clone(),
    };
    Some(new_status(state, &description))
}

/// Returns a status whose description is a line that GitLab accepts. agentk is not trusted.
fn new_status(state: CommitState, text: &str) -> CommitStatus {
    let mut description: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if description.chars().count() > MAX_DESCRIPTION {
        description = description.chars().take(MAX_DESCRIPTION - 1).collect::<String>() + "…";
    }
    CommitStatus { state, description }
}

#[cfg(test)]
mod tests {
    use proto::gitops::{ObjectError, ObjectId};

    use super::*;

    fn target(commit: u32) -> StatusTarget {
        let commit = format!("{commit:040x}").parse().unwrap();
        StatusTarget { agent: "prod".parse().unwrap(), project: 7, name: None, commit }
    }

    fn finished(state: ProjectState) -> SyncEvent {
        SyncEvent { state: Some(state), ..SyncEvent::new(SyncEventKind::Finished, None, "3 objects") }
    }

    /// Sends everything that waits, and returns the states that were sent.
    fn send_all(queue: &mut StatusQueue) -> Vec<(u32, CommitState)> {
        let mut sent = Vec::new();
        while let Some((target, status, known)) = queue.first() {
            if replaces(&status, known.as_ref()) {
                let commit = u32::from_str_radix(target.commit.as_str(), 16).unwrap();
                sent.push((commit, status.state));
            }
            queue.finish(target, status);
        }
        sent
    }

    #[test]
    fn commit_is_pending_and_then_has_one_result() {
        use CommitState::{Canceled, Failed, Pending, Success};

        let mut queue = StatusQueue::default();
        let status = |state| new_status(state, "text");
        queue.put(target(1), status(Pending));
        assert_eq!(send_all(&mut queue), [(1, Pending)]);
        queue.put(target(1), status(Pending));
        queue.put(target(1), status(Failed));
        queue.put(target(1), status(Failed));
        assert_eq!(send_all(&mut queue), [(1, Failed)], "a retry with the same error says nothing new");
        queue.put(target(1), status(Pending));
        queue.put(target(1), new_status(Success, "3 objects"));
        queue.put(target(1), new_status(Success, "agentk has it already"));
        queue.put(target(1), status(Canceled));
        assert_eq!(send_all(&mut queue), [(1, Success)]);

        // The second commit is replaced while it waits for GitLab, and the third one before it was tried.
        queue.put(target(2), status(Pending));
        assert_eq!(send_all(&mut queue), [(2, Pending)]);
        queue.put(target(2), status(Canceled));
        queue.put(target(3), status(Canceled));
        queue.put(target(4), status(Success));
        assert_eq!(send_all(&mut queue), [(2, Canceled), (4, Success)]);
        assert!(queue.order.is_empty() && queue.wanted.is_empty());
    }

    #[test]
    fn projects_of_one_repository_have_statuses_of_their_own() {
        let named = |name: &str| StatusTarget { name: Some(name.to_owned()), ..target(1) };
        assert_eq!(
            (target(1).name(), named("shop").name()),
            ("agentk/prod".to_owned(), "agentk/prod/shop".to_owned())
        );
        let mut queue = StatusQueue::default();
        queue.put(named("shop"), new_status(CommitState::Success, ""));
        queue.put(named("blog"), new_status(CommitState::Failed, ""));
        assert_eq!(send_all(&mut queue), [(1, CommitState::Success), (1, CommitState::Failed)]);
    }

    #[test]
    fn newer_status_of_a_commit_that_is_being_sent_is_sent_next() {
        let mut queue = StatusQueue::default();
        queue.put(target(1), new_status(CommitState::Pending, ""));
        let (first, status, _) = queue.first().unwrap();
        queue.put(target(1), new_status(CommitState::Success, ""));
        queue.finish(first, status);
        assert_eq!(send_all(&mut queue), [(1, CommitState::Success)]);
    }

    #[test]
    fn queue_is_bounded() {
        let mut queue = StatusQueue::default();
        let put =
            |queue: &mut StatusQueue, commit| queue.put(target(commit), new_status(CommitState::Success, ""));
        assert!((0..MAX_STATUSES as u32).all(|commit| put(&mut queue, commit)));
        assert!(!put(&mut queue, u32::MAX));
        assert!(put(&mut queue, 0), "it waits already");
    }

    #[test]
    fn description_is_the_first_error_with_its_file_in_one_short_line() {
        let object =
            ObjectId { kind: "Deployment".to_owned(), name: "web".to_owned(), ..ObjectId::default() };
        let error = ObjectError {
            object: Some(object),
            file: "manifests/web.yaml:3".to_owned(),
            message: format!("exceeded\nquota {}", "x".repeat(500)),
        };
        let event = SyncEvent { error: Some(error), ..finished(ProjectState::Failed) };
        let status = status_of(&event).unwrap();
        assert_eq!(status.state, CommitState::Failed);
        assert!(status.description.starts_with("manifests/web.yaml:3: Deployment web: exceeded quota xxx"));
        assert_eq!(status.description.chars().count(), MAX_DESCRIPTION);
        let status = status_of(&finished(ProjectState::Held)).unwrap();
        assert_eq!((status.state, &*status.description), (CommitState::Failed, "3 objects"));
        assert_eq!(status_of(&finished(ProjectState::Degraded)).unwrap().state, CommitState::Success);
        assert_eq!(status_of(&finished(ProjectState::Suspended)), None);
        let stopped = SyncEvent::new(SyncEventKind::Finished, None, "another pod leads now");
        assert_eq!(status_of(&stopped), None);
    }
}

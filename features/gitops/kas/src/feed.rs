//! Sends the manifests of one agent through one tunnel, while agentk wants this replica as its source.

use std::{collections::HashSet, convert::Infallible, pin::Pin, time::Duration};

use access::AgentIdentity;
use futures_util::{
    StreamExt as _,
    future::{BoxFuture, join_all, pending},
    stream::{self, FuturesUnordered},
};
use git::{Commit, CommitId, RepositoryError, RepositoryFile};
use http::{Method, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use kas_core::{
    agent_requests::{AgentRequestError, json, request, send},
    attachments::{AgentSubscription, Attachment, Lines, SubscriptionConfig},
    configuration::{ConfigurationState, wait_for_configuration},
};
use proto::{
    ServiceName,
    agent_configuration::gitops::{Gitops, ManifestProject},
    gitops::{
        CommitInfo, PROBLEM_PATH, PROJECTS_PATH, ProjectList, SOURCE_PATH, SYNC_PATH, SourceNotice,
        SourceProblem, SourceQuery, SyncEncoder, SyncEvent, SyncHead,
    },
};
use render::Share;
use serde::Serialize;
use tokio::{
    sync::{Semaphore, broadcast},
    time::{Instant, sleep, sleep_until},
};
use tunnel::{Body, Tunnel};

use super::{
    GitopsService, REQUEST_TIMEOUT,
    commit::{CommitFiles, CommitSource, ManifestError},
    commit_status::{CommitStatuses, StatusTarget},
    looks::FollowedReference,
    readers::ReaderGuard,
    versions::ClusterReader,
};

/// The time that agentk may take to receive all files of a commit.
pub(super) const SYNC_TIMEOUT: Duration = Duration::from_secs(300);
/// The pause before the next attempt after a request that failed.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest such pause while kas has no projects. It doubles from [`PAUSE`] on.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The shortest time between two answers to requests of agentk for the files of a project.
const WANTED_PERIOD: Duration = Duration::from_secs(1);
pub(super) const SUBSCRIPTION: SubscriptionConfig = SubscriptionConfig {
    disabled_as: ServiceName::GITOPS,
    head_timeout: REQUEST_TIMEOUT,
    line_timeout: None,
    max_line: 64 << 10,
};
/// The most files for diffs that are read for one tunnel at the same time.
const MAX_PREVIEWS: usize = 4;
/// The requests of agentk for files that a project may not have seen.
const QUEUE: usize = 64;

/// Sends manifests through the tunnels of one agent.
#[derive(Debug)]
pub(super) struct GitopsFeed {
    pub(super) service: GitopsService,
    pub(super) reader: ReaderGuard,
    pub(super) subscription: AgentSubscription,
    /// The version of Kubernetes that agentk named when it opened the tunnel.
    pub(super) kubernetes: Option<String>,
    /// The permit for the diff of a merge request.
    pub(super) preview_turn: Semaphore,
}

/// The state of a project that was sent to agentk last.
#[derive(Default)]
struct Sent {
    commit: Option<CommitId>,
    problem: Option<String>,
    /// The events of the last sync, while it runs.
    events: Option<Lines<Body>>,
    /// The commit whose status in GitLab the events are about.
    target: Option<StatusTarget>,
}

/// The end of a subscription that was no error.
enum SubscriptionEnd {
    /// Neither kas nor agentk has projects.
    NotNeeded,
    /// agentk has ended it.
    Closed,
}

/// The reason why a project was not sent.
pub(super) enum FeedError {
    /// There are no files. agentk has to know.
    Source(String),
    /// The tunnel or agentk failed.
    Tunnel(String),
}

impl Attachment for GitopsFeed {
    fn run<'a>(&'a mut self, tunnel: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(self.serve(tunnel))
    }
}

impl GitopsFeed {
    /// Serves the tunnel. The future never completes.
    async fn serve(&self, tunnel: &Tunnel) {
        let mut configuration = self.reader.configuration.clone();
        tokio::select! {
            biased;
            () = wait_for_configuration(&mut configuration, has_projects) => {}
            never = self.serve_former_projects(tunnel) => match never {},
        }
        let subscribe = || async { Box::pin(self.subscribe(tunnel, true)).await.map(drop) };
        match self.subscription.repeat([PAUSE, PAUSE], subscribe).await {}
    }

    pub(super) fn agent(&self) -> &AgentIdentity {
        &self.subscription.agent
    }

    /// Lets agentk show and prune the projects that it has from before, while kas has none for it.
    async fn serve_former_projects(&self, tunnel: &Tunnel) -> Infallible {
        let subscribe = || async {
            match Box::pin(self.subscribe(tunnel, false)).await? {
                // Former projects appear only after the configuration has had projects.
                SubscriptionEnd::NotNeeded => pending().await,
                SubscriptionEnd::Closed => Ok(()),
            }
        };
        self.subscription.repeat([PAUSE, LONGEST_PAUSE], subscribe).await
    }

    /// Follows the notices of agentk until the subscription ends. Without projects, agentk needs none unless it has projects from before:
    /// agents without GitOps have no leader, and no rights for one.
    async fn subscribe(&self, tunnel: &Tunnel, has_projects: bool) -> Result<SubscriptionEnd, String> {
        let query = SourceQuery { agent: self.agent().id, has_projects };
        let path = format!("{SOURCE_PATH}?{query}");
        let request = request(Method::GET, ServiceName::MANIFESTS, &path, Body::empty());
        let response = match send(tunnel, request, REQUEST_TIMEOUT).await {
            Ok(response) if !has_projects && response.status() == StatusCode::NO_CONTENT => {
                return Ok(SubscriptionEnd::NotNeeded);
            }
            // An agentk that does not know the parameter responds with an error of the client.
            Err(AgentRequestError::Refused(status, _)) if !has_projects && status.is_client_error() => {
                return Ok(SubscriptionEnd::NotNeeded);
            }
            response => response?,
        };
        let mut notices = self.subscription.lines(response);
        let wanted = broadcast::Sender::new(QUEUE);
        let mut feeding: Option<Pin<Box<dyn Future<Output = Infallible> + Send + '_>>> = None;
        let mut previews = FuturesUnordered::new();
        loop {
            let notice = tokio::select! {
                notice = notices.next::<SourceNotice>() => notice?,
                Some(()) = previews.next(), if !previews.is_empty() => continue,
                never = async { feeding.as_mut().expect("checked below").await }, if feeding.is_some() => match never {},
            };
            match notice {
                None => return Ok(SubscriptionEnd::Closed),
                Some(SourceNotice::Standby) => feeding = None,
                Some(SourceNotice::Active) => {
                    tracing::debug!(agent.name = %self.agent().name, "this replica is the source of manifests");
                    feeding = Some(Box::pin(self.feed(tunnel, wanted.clone())));
                }
                // agentk waits for a limited time, and asks for a few at the same time only.
                Some(SourceNotice::Preview(request)) if previews.len() < MAX_PREVIEWS => {
                    previews.push(self.preview(tunnel, request));
                }
                Some(SourceNotice::Preview(request)) => {
                    tracing::debug!(agent.name = %self.agent().name, project = request.project, "too many diffs at the same time");
                }
                // Fails if nothing is fed.
                Some(SourceNotice::Wanted(project)) => drop(wanted.send(project)),
            }
        }
    }

    /// Sends all projects of the configuration, and each new commit.
    async fn feed(&self, tunnel: &Tunnel, wanted: broadcast::Sender<String>) -> Infallible {
        let mut configuration = self.reader.configuration.clone();
        loop {
            wait_for_configuration(&mut configuration, |state| projects(state).1.is_some()).await;
            let (own, projects) = projects(&configuration.borrow_and_update());
            let Some(projects) = projects else { continue };
            let named = projects.iter().cloned().map(ManifestProject::into_named);
            let list = ProjectList { projects: named.collect() };
            let follow = async {
                if projects.is_empty() {
                    // Another replica may have projects, and be about to replace this one.
                    sleep(PAUSE).await;
                }
                while let Err(error) = put(tunnel, PROJECTS_PATH, &list).await {
                    tracing::debug!(agent.name = %self.agent().name, %error, "the list of projects was not sent");
                    sleep(PAUSE).await;
                }
                let followed =
                    projects.iter().map(|project| self.follow(tunnel, project, &own, wanted.subscribe()));
                let previewed = projects
                    .iter()
                    .filter(|project| project.merge_request_previews)
                    .map(|project| self.follow_merge_requests(tunnel, project, &own));
                tokio::join!(join_all(followed), join_all(previewed));
                pending::<()>().await;
            };
            let differs =
                |state: &ConfigurationState| self::projects(state).1.is_some_and(|now| now != projects);
            tokio::select! {
                () = follow => {}
                () = wait_for_configuration(&mut configuration, differs) => {}
            }
        }
    }

    /// Sends each new commit of a project. The future never completes.
    async fn follow(
        &self,
        tunnel: &Tunnel,
        project: &ManifestProject,
        own: &str,
        mut wanted: broadcast::Receiver<String>,
    ) {
        let (id, name) = (project.id.as_deref().unwrap_or(own), project.name().unwrap_or(own));
        let mut pushes = self.service.pushes();
        let period = project.interval.unwrap_or(self.service.0.poll_period);
        let mut sent = Sent::default();
        let mut answered = Instant::now();
        // Another replica may have sent a newer commit than this one has seen.
        let mut age = Duration::ZERO;
        loop {
            let pause = match self.send_newest(tunnel, project, own, age, &mut sent).await {
                Ok(()) => {
                    sent.problem = None;
                    period.mul_f64(rand::random_range(0.9..1.1))
                }
                Err(FeedError::Tunnel(error)) => {
                    tracing::debug!(agent.name = %self.agent().name, project = name, error, "a commit was not sent to agentk");
                    PAUSE
                }
                Err(FeedError::Source(message)) => {
                    self.report(tunnel, name, message, &mut sent).await;
                    period.max(PAUSE)
                }
            };
            age = period.mul_f64(0.8);
            let woken = async {
                loop {
                    tokio::select! {
                        push = pushes.recv() => if push.is_none_or(|path| path == id) { return false },
                        asked = wanted.recv() => if asked.is_ok_and(|asked| asked == name) { return true },
                    }
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                again = woken => {
                    age = Duration::ZERO;
                    if again {
                        sleep_until(answered + WANTED_PERIOD).await;
                        answered = Instant::now();
                        sent.commit = None;
                    }
                }
                () = self.drain(&mut sent) => {}
            }
        }
    }

    /// Sends the newest commit of a project unless it was sent.
    async fn send_newest(
        &self,
        tunnel: &Tunnel,
        project: &ManifestProject,
        own: &str,
        age: Duration,
        sent: &mut Sent,
    ) -> Result<(), FeedError> {
        if project.suspend && sent.commit.is_some() {
            return Ok(());
        }
        self.check_enabled()?;
        self.check_interval(project)?;
        let agent = (self.agent(), &self.reader.token);
        let followed = self.service.0.sources.follow(agent, project, own).await;
        let followed = followed.map_err(|error| FeedError::Source(error.to_string()))?;
        let source = |error: RepositoryError| FeedError::Source(error.to_string());
        let commit = followed.newest(age).await.map_err(source)?;
        let Some(Commit { id, branch }) = commit else {
            return Err(FeedError::Source("the repository has no commit yet; nothing is deleted".to_owned()));
        };
        if sent.commit.as_ref() == Some(&id) && sent.problem.is_none() {
            return Ok(());
        }
        let target = self.status_target(&followed, project, own, &id);
        let read = self.read_commit(tunnel, &followed, project, own, &id, &branch).await;
        let (head, files) = read.map_err(|error| {
            if let Some((statuses, target)) = self.statuses().zip(target.as_ref()) {
                statuses.fail(target, &error.message);
            }
            FeedError::Source(error.message)
        })?;
        let request = request(Method::POST, ServiceName::MANIFESTS, SYNC_PATH, sync_body(head, files));
        let response = send(tunnel, request, SYNC_TIMEOUT).await;
        let response = response.map_err(|error| FeedError::Tunnel(error.into()))?;
        sent.events = Some(self.subscription.lines(response));
        sent.commit = Some(id);
        self.set_target(target, sent);
        Ok(())
    }

    fn statuses(&self) -> Option<&CommitStatuses> {
        self.service.0.statuses.as_ref()
    }

    /// Returns the commit as one that has a status in GitLab: if it is of the project with the configuration of the agent.
    fn status_target(
        &self,
        followed: &FollowedReference,
        project: &ManifestProject,
        own: &str,
        commit: &CommitId,
    ) -> Option<StatusTarget> {
        let is_own = project.id.as_deref().is_none_or(|id| id == own);
        let id = followed.gitlab_project.filter(|_| is_own && self.statuses().is_some())?;
        let (agent, name, commit) = (self.agent().name.clone(), project.name.clone(), commit.clone());
        Some(StatusTarget { agent, project: id, name, commit })
    }

    /// Notes which commit is applied now. The one before it is not applied any more.
    fn set_target(&self, target: Option<StatusTarget>, sent: &mut Sent) {
        let before = std::mem::replace(&mut sent.target, target);
        if let Some((statuses, before)) =
            self.statuses().zip(before.filter(|before| Some(before) != sent.target.as_ref()))
        {
            statuses.supersede(&before);
        }
    }

    /// Reads the events of a sync until it ends. Without a sync, the future never completes.
    async fn drain(&self, Sent { events, target, .. }: &mut Sent) {
        let Some(lines) = events else { return pending().await };
        while let Ok(Some(event)) = lines.next::<SyncEvent>().await {
            tracing::trace!(event = ?event.event, message = event.message, "event of a sync");
            if let Some((statuses, target)) = self.statuses().zip(target.as_ref()) {
                statuses.note(target, &event);
            }
        }
        *events = None;
    }

    /// Reads the manifests of a project at a commit.
    pub(super) async fn read_commit(
        &self,
        tunnel: &Tunnel,
        followed: &FollowedReference,
        project: &ManifestProject,
        own: &str,
        id: &CommitId,
        branch: &str,
    ) -> Result<(SyncHead, Vec<RepositoryFile>), ManifestError> {
        let name = project.name().unwrap_or(own);
        let share = Share { agent: self.agent().id, project: name.to_owned() };
        let cluster = ClusterReader { tunnel, kubernetes: self.kubernetes.as_deref() };
        let source = CommitSource { followed, id };
        let CommitFiles { files, unstable } =
            self.service.0.commits.read(source, project, &share, &cluster).await?;
        let mut settings = project.clone().into_named();
        settings.ignore_differences.extend(unstable);
        let reference = project.r#ref.as_ref().map_or_else(|| followed.describe(branch), ToString::to_string);
        let head = SyncHead {
            project: name.to_owned(),
            settings,
            // GitLab's agent had one inventory for each repository, which belongs to the project without a name.
            gitlab_project: followed.gitlab_project.filter(|_| project.name.is_none()),
            reference,
            commit: CommitInfo { id: id.to_string(), subject: files.subject, author: files.author },
        };
        Ok((head, files.files))
    }

    /// Checks that the project does not ask for more looks at its repository than the operator of kas allows.
    fn check_interval(&self, project: &ManifestProject) -> Result<(), FeedError> {
        let least = self.service.0.min_interval;
        match project.interval.filter(|interval| *interval < least) {
            None => Ok(()),
            Some(interval) => Err(FeedError::Source(format!(
                "interval is {}, and the operator of kas allows {} or more (agent.gitops.min_interval)",
                humantime::format_duration(interval),
                humantime::format_duration(least),
            ))),
        }
    }

    /// Checks that the operator of kas has not disabled GitOps for this agent.
    pub(super) fn check_enabled(&self) -> Result<(), FeedError> {
        self.subscription.check_enabled().map_err(|error| FeedError::Source(error.to_string()))
    }

    /// Tells agentk why there are no files, once for each reason.
    async fn report(&self, tunnel: &Tunnel, id: &str, message: String, sent: &mut Sent) {
        if sent.problem.as_ref() == Some(&message) {
            return;
        }
        tracing::warn!(agent.name = %self.agent().name, project = id, error = message, "manifests of a project not read");
        let problem = SourceProblem { project: id.to_owned(), message: message.clone(), is_final: false };
        match put(tunnel, PROBLEM_PATH, &problem).await {
            Ok(()) => sent.problem = Some(message),
            Err(error) => tracing::debug!(project = id, %error, "the problem was not sent to agentk"),
        }
    }
}

impl FeedError {
    pub(super) fn into_message(self) -> String {
        let (Self::Source(message) | Self::Tunnel(message)) = self;
        message
    }
}

/// Returns the body with the files of a commit.
pub(super) fn sync_body(head: SyncHead, files: Vec<RepositoryFile>) -> Body {
    let mut encoder = SyncEncoder::default();
    let mut parts = vec![encoder.head(head)];
    for file in files {
        parts.push(encoder.file(&file.path, &file.content));
        parts.push(file.content.into());
    }
    parts.push(encoder.end());
    let frames = parts.into_iter().map(|part| Ok::<_, Infallible>(Frame::data(part)));
    Body::new(StreamBody::new(stream::iter(frames)))
}

/// Returns the id of the project with the configuration, and the projects of the configuration, with their ids and with different names.
/// They are `None` before the first reading.
pub(super) fn projects(state: &ConfigurationState) -> (String, Option<Vec<ManifestProject>>) {
    let own = state.project().unwrap_or("configuration").to_owned();
    let Some(configuration) = state.configuration() else { return (own, None) };
    // The file was validated when it was read.
    let gitops = configuration
        .get("gitops")
        .and_then(|section| serde_json::from_value::<Gitops>(section.clone()).ok());
    let mut projects = gitops.unwrap_or_default().manifest_projects;
    for project in &mut projects {
        project.id.get_or_insert_with(|| own.clone());
    }
    // The file was validated without the id of its own project, which may be a name, too.
    let mut names = HashSet::new();
    projects.retain(|project| names.insert(project.name().map(str::to_owned)));
    (own, Some(projects))
}

fn has_projects(state: &ConfigurationState) -> bool {
    projects(state).1.is_some_and(|projects| !projects.is_empty())
}

pub(super) async fn put(
    tunnel: &Tunnel,
    path: &str,
    value: &impl Serialize,
) -> Result<(), AgentRequestError> {
    let request = request(Method::PUT, ServiceName::MANIFESTS, path, json(value));
    send(tunnel, request, REQUEST_TIMEOUT).await.map(drop)
}

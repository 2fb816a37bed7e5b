//! The requests of kas (`manifests`) and of callers (`gitops`).

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::SystemTime,
};

use agentk_core::services::{
    RequestHandler, ServiceError,
    response::{JSON_LINES, bad_request, json_response, line, stream_response, wrong_method},
};
use futures_util::stream;
use gitops_engine::SourceFile;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use proto::{
    AgentId, Reason,
    gitops::{
        CLUSTER_PATH, FrameLimits, MAX_FILES, MAX_PROJECT_LIST, PREVIEW_PATH, PROBLEM_PATH, PROJECTS_PATH,
        ProjectList, ProjectPath, ProjectStatus, SOURCE_PATH, SYNC_PATH, SourceProblem, SourceQuery,
        SyncDecoder, SyncFrame, SyncHead,
    },
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{broadcast::error::RecvError, mpsc};
use tunnel::Body;

use super::{
    Gitops, attendance, commands, diff,
    project::Submitted,
    sources::QUEUE,
    stored::{self, APPROVED, PRUNE, RECOVER, REQUESTED, SUSPENDED},
};

/// The largest sync that agentk accepts. The limits of kas are lower by default.
const LIMITS: FrameLimits = FrameLimits { files: MAX_FILES as u64, bytes: 64 << 20 };
/// The message of an orphaned project.
const ORPHANED: &str =
    "the project is not in the configuration any more; its objects stay until kas gitops prune";

/// Serves kas itself.
#[derive(Clone, Debug)]
pub(crate) struct ManifestsHandler(pub(crate) Arc<Gitops>);

/// Serves callers.
#[derive(Clone, Debug)]
pub(crate) struct GitopsHandler(pub(crate) Arc<Gitops>);

/// Removes a subscription when kas ends it, or its tunnel is lost.
struct Subscription {
    gitops: Arc<Gitops>,
    number: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.gitops.sources.lock().remove(self.number);
    }
}

impl RequestHandler for ManifestsHandler {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let path = request.uri().path().to_owned();
        match (request.method(), &*path) {
            (&Method::GET, SOURCE_PATH) => self.subscribe(request.uri().query()).await,
            (&Method::PUT, PROJECTS_PATH) => self.set_projects(request).await,
            (&Method::PUT, PROBLEM_PATH) => self.report_problem(request).await,
            (&Method::POST, SYNC_PATH) => self.sync(request).await,
            (&Method::POST | &Method::PUT, PREVIEW_PATH) => self.preview(request).await,
            (&Method::GET, CLUSTER_PATH) => self.cluster_versions().await,
            (_, SOURCE_PATH | PROJECTS_PATH | PROBLEM_PATH | SYNC_PATH | PREVIEW_PATH | CLUSTER_PATH) => {
                Err(wrong_method(&path, "GET, PUT, POST"))
            }
            _ => Err(unknown_path(&path)),
        }
    }
}

impl ManifestsHandler {
    /// Answers with a line for each notice, for as long as kas reads them. Without projects, there are none, and no Lease.
    async fn subscribe(&self, query: Option<&str>) -> Result<Response<Body>, ServiceError> {
        let query = query.unwrap_or_default().parse::<SourceQuery>();
        let query = query.map_err(|error| bad_request(&error.to_string()))?;
        let SourceQuery { agent, has_projects } = query;
        let needed = if has_projects { Ok(true) } else { self.has_former_projects(agent).await };
        if let Ok(true) = needed {
            self.0.leader.set_agent(agent);
        }
        self.0.subscribed.send_replace(Some(needed.clone().map(drop)));
        if !needed? {
            return Ok(no_content());
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let number = self.0.sources.lock().add(sender, has_projects);
        let subscription = Subscription { gitops: Arc::clone(&self.0), number };
        let lines = stream::unfold((receiver, subscription), async |(mut receiver, subscription)| {
            let notice = receiver.recv().await?;
            Some((line(&notice), (receiver, subscription)))
        });
        Ok(stream_response(JSON_LINES, lines))
    }

    /// Returns whether there are projects from before, of this process or in the cluster.
    async fn has_former_projects(&self, agent: AgentId) -> Result<bool, ServiceError> {
        if !self.0.projects.lock().is_empty() {
            return Ok(true);
        }
        match stored::statuses(&self.0, agent).await {
            Ok(stored) => Ok(!stored.is_empty()),
            // Without GitOps, agentk needs no right to list its inventories.
            Err(error) if error.status == 403 => Ok(false),
            Err(error) => Err(ServiceError::new(Reason::ClusterMisbehaved, error)),
        }
    }

    async fn set_projects(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let list: ProjectList = read_json(request, MAX_PROJECT_LIST).await?;
        self.check_leading()?;
        let ids: Vec<&str> = list.projects.iter().filter_map(|project| project.id.as_deref()).collect();
        let agent = self.0.leader.agent().unwrap_or(AgentId(0));
        let stored = stored::statuses(&self.0, agent).await;
        let stored = stored.map_err(|error| ServiceError::new(Reason::ClusterMisbehaved, error))?;
        let mut pruned = HashSet::new();
        for (status, commands) in stored {
            let project = self.0.project(&status.project);
            project.restore(status);
            if commands.prunes {
                pruned.insert(project.id.clone());
            }
        }
        for &id in &ids {
            self.0.project(id).adopt();
            if pruned.contains(id) {
                let clear = |commands: &mut BTreeMap<_, _>| drop(commands.insert(PRUNE, String::new()));
                let cleared =
                    self.0.leader.while_leading(stored::change_commands(&self.0, agent, id, clear)).await;
                cleared.map_err(|error| ServiceError::new(Reason::ClusterMisbehaved, error))?;
            }
        }
        let dropped: Vec<_> = {
            let projects = self.0.projects.lock();
            projects.values().filter(|project| !ids.contains(&&*project.id)).cloned().collect()
        };
        for project in dropped {
            let orphaned = project.orphan(ORPHANED);
            if pruned.contains(&project.id) {
                project.prune();
            } else if let Some(status) = orphaned {
                tracing::info!(project = project.id, "project orphaned");
                stored::write_status(&self.0, agent, &status).await;
                self.0.metrics.forget(&project.id);
            }
        }
        Ok(no_content())
    }

    /// Notes that kas has no files for a project. Objects that were applied before stay.
    async fn report_problem(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let problem: SourceProblem = read_json(request, MAX_PROJECT_LIST).await?;
        self.check_leading()?;
        let project = self.0.project(&problem.project);
        let agent = self.0.leader.agent().unwrap_or(AgentId(0));
        if let Some(status) = project.set_problem(problem.message.clone()) {
            tracing::warn!(project = problem.project, error = problem.message, "no manifests for a project");
            stored::write_status(&self.0, agent, &status).await;
        }
        Ok(no_content())
    }

    /// Reads a whole sync, and answers with its events.
    async fn sync(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        self.check_leading()?;
        let (head, files) = read_files(request.into_body()).await?;
        self.check_leading()?;
        let project = self.0.project(&head.project);
        let events = project.events.subscribe();
        let Submitted { number, status } = project.submit(head, files);
        if let Some(status) = status {
            let agent = self.0.leader.agent().unwrap_or(AgentId(0));
            stored::write_status(&self.0, agent, &status).await;
        }
        if let Some(event) = project.finished() {
            return Ok(stream_response(JSON_LINES, stream::iter([line(&event)])));
        }
        let lines = stream::unfold(Some((events, project)), move |state| async move {
            let (mut events, project) = state?;
            loop {
                match events.recv().await {
                    Ok((of, event)) if of == number => {
                        let is_last = event.is_last();
                        return Some((line(&event), (!is_last).then_some((events, project))));
                    }
                    // A newer commit has replaced this one.
                    Ok((of, _)) if of > number => return None,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        });
        Ok(stream_response(JSON_LINES, lines))
    }

    /// Hands the files for a diff, or the reason why there are none, to the diff.
    async fn preview(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let query = request.uri().query().unwrap_or_default();
        let number = query.strip_prefix("number=").and_then(|number| number.parse::<u64>().ok());
        let number = number.ok_or_else(|| bad_request("the query must be number=<number of the request>"))?;
        let preview = match *request.method() {
            Method::POST => Ok(read_files(request.into_body()).await?),
            _ => Err(read_json::<SourceProblem>(request, MAX_PROJECT_LIST).await?),
        };
        if self.0.previews.answer(number, preview) {
            Ok(no_content())
        } else {
            Err(bad_request("the diff waits no longer"))
        }
    }

    /// Answers with the version and the API of the cluster, as each pod of agentk knows them.
    async fn cluster_versions(&self) -> Result<Response<Body>, ServiceError> {
        let versions = self.0.cluster.versions().await;
        let versions = versions.map_err(|error| ServiceError::new(Reason::ClusterMisbehaved, error))?;
        Ok(json_response(&versions))
    }

    fn check_leading(&self) -> Result<(), ServiceError> {
        if self.0.leader.is_leading() {
            Ok(())
        } else {
            Err(ServiceError::new(Reason::BadRequest, "another pod of agentk leads GitOps now"))
        }
    }
}

impl RequestHandler for GitopsHandler {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let path = request.uri().path().to_owned();
        let Some(rest) = path.strip_prefix(PROJECTS_PATH) else { return Err(unknown_path(&path)) };
        if rest.is_empty() || rest == "/" {
            return match *request.method() {
                Method::GET => self.list().await,
                _ => Err(wrong_method(&path, "GET, HEAD")),
            };
        }
        let ProjectPath { project, command } =
            ProjectPath::parse(&path).ok_or_else(|| unknown_path(&path))?;
        match (request.method(), command) {
            (&Method::GET, None) => self.show(&project).await,
            (&Method::POST, Some("diff")) => self.diff(project.into_owned(), request).await,
            (&Method::POST, Some(command)) => self.command(&project, command, request.uri().query()).await,
            (_, None) => Err(wrong_method(&path, "GET, HEAD")),
            (_, Some(_)) => Err(wrong_method(&path, "POST")),
        }
    }
}

impl GitopsHandler {
    async fn statuses(&self) -> Result<Vec<ProjectStatus>, ServiceError> {
        let Some(agent) = self.0.agent_with_projects().await? else { return Ok(Vec::new()) };
        let statuses = stored::statuses(&self.0, agent).await;
        let statuses = statuses.map_err(|error| ServiceError::new(Reason::ClusterMisbehaved, error))?;
        let mut statuses: Vec<_> = statuses.into_iter().map(|(status, _)| status).collect();
        if self.0.leader.is_leading() {
            // The time is written rarely, and this pod knows it.
            for status in &mut statuses {
                let project = self.0.find_project(&status.project);
                status.as_of = project.map_or(0, |project| project.status().as_of).max(status.as_of);
            }
        }
        statuses.sort_by(|a, b| a.project.cmp(&b.project));
        Ok(statuses)
    }

    /// Returns the statuses as people see them.
    async fn shown(&self) -> Result<Vec<ProjectStatus>, ServiceError> {
        let mut statuses = self.statuses().await?;
        let leaderless = self.0.leader.unattended();
        for status in &mut statuses {
            attendance::mark(status, leaderless.as_deref(), SystemTime::now());
        }
        Ok(statuses)
    }

    async fn list(&self) -> Result<Response<Body>, ServiceError> {
        Ok(json_response(&json!({"projects": self.shown().await?})))
    }

    async fn show(&self, id: &str) -> Result<Response<Body>, ServiceError> {
        let found = self.shown().await?.into_iter().find(|status| status.project == id);
        found.map(|status| json_response(&status)).ok_or_else(|| unknown_project(id))
    }

    /// Answers with a line for each object that a sync would change.
    async fn diff(&self, project: String, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let caller = request.headers().clone();
        let admitted = diff::admit(&self.0, request).await?;
        let lines = diff::run(Arc::clone(&self.0), project, admitted, &caller).await?;
        Ok(stream_response(
            JSON_LINES,
            stream::unfold(lines, async |mut lines| {
                let next = lines.recv().await?;
                Some((line(&next), lines))
            }),
        ))
    }

    async fn command(
        &self,
        id: &str,
        command: &str,
        query: Option<&str>,
    ) -> Result<Response<Body>, ServiceError> {
        let status = self.statuses().await?.into_iter().find(|status| status.project == id);
        let status = status.ok_or_else(|| unknown_project(id))?;
        let change = match command {
            "sync" => Vec::new(),
            "suspend" => vec![(SUSPENDED, "true".to_owned())],
            "resume" => vec![(SUSPENDED, String::new())],
            "approve" => vec![(APPROVED, commands::approval(&status, query)?)],
            "recover" => vec![(RECOVER, commands::recovery(&status, query)?)],
            "prune" => {
                commands::check_orphaned(&status)?;
                vec![(PRUNE, "true".to_owned()), (SUSPENDED, String::new())]
            }
            _ => {
                return Err(ServiceError::new(
                    Reason::UnknownPath,
                    format!("there is no command {command:?} about a project"),
                ));
            }
        };
        // Another pod may lead: it sees that the annotations change.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let agent = self.0.leader.agent().unwrap_or(AgentId(0));
        let changed = stored::change_commands(&self.0, agent, id, |commands| {
            commands.insert(REQUESTED, now.as_millis().to_string());
            commands.extend(change.clone());
        });
        changed.await.map_err(|error| ServiceError::new(Reason::ClusterMisbehaved, error))?;
        tracing::info!(project = id, command, "command about a project");
        if let Some(project) = self.0.find_project(id).filter(|_| self.0.leader.is_leading()) {
            if command == "prune" {
                project.prune();
            }
            project.request();
        }
        self.0.sources.lock().want(id);
        let mut response = json_response(&json!({"project": id, "command": command}));
        *response.status_mut() = StatusCode::ACCEPTED;
        Ok(response)
    }
}

/// Reads the files of a commit. A body that is cut anywhere is an error.
async fn read_files(mut body: Body) -> Result<(SyncHead, Vec<SourceFile>), ServiceError> {
    let mut decoder = SyncDecoder::new(LIMITS);
    let (mut head, mut files, mut complete) = (None, Vec::new(), false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| bad_request(&error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        decoder.push(&data);
        while let Some(frame) = decoder.next_frame().map_err(|error| bad_request(&error.to_string()))? {
            match frame {
                SyncFrame::Head(it) => head = Some(*it),
                SyncFrame::File { path, content } => files.push(SourceFile { path, content }),
                SyncFrame::End => complete = true,
            }
        }
    }
    decoder.ended().map_err(|error| bad_request(&error.to_string()))?;
    let head = head.filter(|_| complete).ok_or_else(|| bad_request("the sync has no head"))?;
    Ok((head, files))
}

async fn read_json<T: DeserializeOwned>(request: Request<Body>, max_bytes: usize) -> Result<T, ServiceError> {
    let body = Limited::new(request.into_body(), max_bytes).collect().await;
    let body = body.map_err(|error| bad_request(&error.to_string()))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| bad_request(&error.to_string()))
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn unknown_path(path: &str) -> ServiceError {
    ServiceError::new(Reason::UnknownPath, format!("agentk has no path {path} for GitOps"))
}

fn unknown_project(id: &str) -> ServiceError {
    let what = format!("this agent has no project {id:?}: kas gitops list shows its projects");
    ServiceError::new(Reason::UnknownPath, what)
}

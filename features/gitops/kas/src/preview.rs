//! The files for a diff that a caller of an agent wants.

use std::time::Duration;

use git::Commit;
use http::Method;
use kas_core::agent_requests::{self, send};
use proto::{
    ServiceName,
    gitops::{CommitInfo, PREVIEW_PATH, PreviewRequest, SourceProblem, SyncHead},
};
use tunnel::{Body, Tunnel};

use super::{
    commit::ManifestError,
    feed::{GitopsFeed, SYNC_TIMEOUT, projects, put, sync_body},
};

/// The age of a look at the repository that a diff accepts.
const AGE: Duration = Duration::from_secs(1);

impl GitopsFeed {
    /// Answers a request of agentk for the files of a project. No error reaches the caller of this function: agentk learns of it.
    pub(super) async fn preview(&self, tunnel: &Tunnel, request: PreviewRequest) {
        let path = format!("{PREVIEW_PATH}?number={}", request.number);
        let sent = match self.read_preview(tunnel, &request).await {
            Ok(body) => {
                let request = agent_requests::request(Method::POST, ServiceName::MANIFESTS, &path, body);
                send(tunnel, request, SYNC_TIMEOUT).await.map(drop)
            }
            Err(ManifestError { message, is_final }) => {
                put(tunnel, &path, &SourceProblem { project: request.project, message, is_final }).await
            }
        };
        if let Err(error) = sent {
            tracing::debug!(agent.name = %self.agent().name, %error, "the files for a diff were not sent to agentk");
        }
    }

    async fn read_preview(&self, tunnel: &Tunnel, request: &PreviewRequest) -> Result<Body, ManifestError> {
        let (own, projects) = projects(&self.reader.configuration.borrow());
        let project = projects.into_iter().flatten().find(|project| project.name() == Some(&request.project));
        // Another replica may have read a newer configuration.
        let project = project.ok_or_else(|| {
            ManifestError::unavailable(format!(
                "the configuration of the agent has no project {:?}: kas gitops list shows its projects",
                request.project
            ))
        })?;
        let project = project.at(request.reference.clone(), request.directory.as_deref())?;
        self.check_enabled().map_err(|error| ManifestError::unavailable(error.into_message()))?;
        if request.settings_only {
            let (project, settings) = (request.project.clone(), project.into_named());
            let (reference, commit) = (String::new(), CommitInfo::default());
            let head = SyncHead { project, settings, gitlab_project: None, reference, commit };
            return Ok(sync_body(head, Vec::new()));
        }
        let agent = (self.agent(), &self.reader.token);
        // Callers may name any number of versions, of which nothing is kept.
        let followed = match request.reference {
            Some(_) => self.service.0.sources.look_once(agent, &project, &own).await,
            None => self.service.0.sources.follow(agent, &project, &own).await,
        };
        let followed = followed.map_err(|error| ManifestError::unavailable(error.to_string()))?;
        let commit = followed.newest(AGE).await?;
        let Commit { id, branch } = commit
            .ok_or_else(|| ManifestError::unavailable("the repository has no commit yet".to_owned()))?;
        let (head, files) = self.read_commit(tunnel, &followed, &project, &own, &id, &branch).await?;
        Ok(sync_body(head, files))
    }
}

//! The traits between GitOps in kas and other features: what a server of projects, such as GitLab, does for it, and what it does for them.
//!
//! A [`ProjectSource`] has the repositories of projects, and decides which of them an agent may read. A [`CommitStatusApi`] shows the
//! results of syncs, and a [`MergeRequestApi`] the diffs of merge requests. GitOps itself has the [`AgentProjects`] and the [`ManifestOrigins`] for other features.
#![warn(missing_docs)]

mod agent_projects;
mod commit_status;
mod manifest_origins;
mod merge_requests;
mod project;

pub use self::{
    agent_projects::{AgentProjects, ProjectAccessError, ProjectReader},
    commit_status::{
        CommitState, CommitStatus, CommitStatusApi, CommitStatusError, MAX_DESCRIPTION, StatusPlace,
    },
    manifest_origins::{ManifestOriginError, ManifestOrigins},
    merge_requests::{
        MergeRequest, MergeRequestApi, MergeRequestError, MergeRequestNote, NoteKey, NotePlace,
    },
    project::{ProjectAsker, ProjectRepository, ProjectSource, ProjectVersion},
};

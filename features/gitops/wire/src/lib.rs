//! The border of GitOps in kas: what a server of projects, such as GitLab, does for it.
//!
//! A [`ProjectSource`] has the repositories of projects, and decides which of them an agent may read. A [`CommitStatusApi`] shows the
//! results of syncs.
#![warn(missing_docs)]

mod commit_status;
mod project;

pub use self::{
    commit_status::{
        CommitState, CommitStatus, CommitStatusApi, CommitStatusError, MAX_DESCRIPTION, StatusPlace,
    },
    project::{NO_ANSWER, ProjectRepository, ProjectSource, ProjectVersion},
};

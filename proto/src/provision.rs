//! Managed resources on the wire: the objects of an environment, which agentk makes from a template, and deletes.
//!
//! ```text
//!   kas    ── POST   /v1/projects/<id>/environments/<slug> ──► agentk    before the first request of a job
//!   caller ── GET    /v1/projects/<id>/environments/<slug> ──► agentk    the objects
//!   caller ── DELETE /v1/projects/<id>/environments/<slug> ──► agentk    the objects, unless others use them
//! ```
//!
//! The first request is of the internal service `environments`, which callers cannot reach, and the others are of the service `provision`.
//! The template comes with the configuration of the agent.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{AgentId, gitops::ObjectId};

/// The largest body of a request or a response, in bytes.
pub const MAX_BODY: usize = 256 << 10;
/// The longest slug. It is a part of the key of a label.
const MAX_SLUG: usize = 40;

/// An environment of a project.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EnvironmentKey {
    project: u64,
    slug: String,
}

/// The slug of an environment cannot be in names and labels of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the slug of an environment has lower-case letters, digits and '-', at most {MAX_SLUG}")]
pub struct InvalidSlug;

/// A path that is none of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path of an environment is /v1/projects/<id>/environments/<slug>")]
pub struct InvalidEnvironmentPath;

/// The job for which the objects of its environment must exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvironmentJob {
    /// The tier of the environment.
    pub tier: String,
    /// The id of the pipeline.
    pub pipeline: u64,
    /// The id of the job.
    pub job: u64,
    /// The id of the user whose job it is.
    pub user: u64,
    /// The name of this user.
    pub username: String,
}

/// The objects of an environment exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provisioned {
    /// The path of the template.
    pub template: String,
    /// The objects in the order of the template.
    pub objects: Vec<ProvisionedObject>,
}

/// An object of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvisionedObject {
    /// The object.
    #[serde(flatten)]
    pub id: ObjectId,
    /// What was done.
    pub change: ObjectChange,
}

/// What was done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectChange {
    /// It did not exist.
    Created,
    /// It differed from the template.
    Updated,
    /// It was as the template has it.
    Unchanged,
}

/// The objects of an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentObjects {
    /// The objects, in order.
    pub objects: Vec<ObjectId>,
}

/// What became of the objects of an environment that shall be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// The objects that do not exist any more, or that the API server deletes now.
    pub deleted: Vec<ObjectId>,
    /// The objects that stay, each with the reason.
    pub kept: Vec<KeptObject>,
}

/// An object that was not deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptObject {
    /// The object.
    #[serde(flatten)]
    pub id: ObjectId,
    /// Why it stays.
    pub reason: String,
}

impl EnvironmentKey {
    /// Returns the environment of a project with this slug.
    ///
    /// # Errors
    ///
    /// The slug is not lower-case letters, digits and `-`, or it is too long.
    pub fn new(project: u64, slug: &str) -> Result<Self, InvalidSlug> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = (1..=MAX_SLUG).contains(&slug.len())
            && slug.bytes().all(plain)
            && !slug.starts_with('-')
            && !slug.ends_with('-');
        if !valid {
            return Err(InvalidSlug);
        }
        Ok(Self { project, slug: slug.to_owned() })
    }

    /// Returns the id of the project.
    pub fn project(&self) -> u64 {
        self.project
    }

    /// Returns the slug.
    pub fn slug(&self) -> &str {
        &self.slug
    }

    /// Returns the path of the requests about it.
    pub fn path(&self) -> String {
        format!("/v1/projects/{}/environments/{}", self.project, self.slug)
    }

    /// Reads the path of a request.
    ///
    /// # Errors
    ///
    /// The path is another one, or its slug is invalid.
    pub fn of_path(path: &str) -> Result<Self, InvalidEnvironmentPath> {
        let rest = path.strip_prefix("/v1/projects/").and_then(|rest| rest.split_once("/environments/"));
        let (project, slug) = rest.ok_or(InvalidEnvironmentPath)?;
        // Has one spelling of each number.
        let project = AgentId::from_str(project).map_err(|_| InvalidEnvironmentPath)?;
        Self::new(project.0, slug).map_err(|_| InvalidEnvironmentPath)
    }
}

/// `review-1 of project 30`.
impl fmt::Display for EnvironmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of project {}", self.slug, self.project)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_an_environment_has_one_spelling() {
        let key = EnvironmentKey::new(30, "review-1").unwrap();
        assert_eq!(key.path(), "/v1/projects/30/environments/review-1");
        assert_eq!(EnvironmentKey::of_path(&key.path()), Ok(key));
        for path in [
            "/v1/projects/030/environments/a",
            "/v1/projects/+3/environments/a",
            "/v1/projects/3/environments/",
            "/v1/projects/3/environments/A",
            "/v1/projects/3/environments/a/b",
            "/v1/projects/3/environments/a%2fb",
            "/v1/projects/3/environments/-a",
            "/v1/projects/3",
            "/v2/projects/3/environments/a",
        ] {
            assert_eq!(EnvironmentKey::of_path(path), Err(InvalidEnvironmentPath), "{path}");
        }
        assert_eq!(EnvironmentKey::new(1, &"a".repeat(41)), Err(InvalidSlug));
    }
}

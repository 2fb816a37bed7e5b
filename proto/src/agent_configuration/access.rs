//! Sections `ci_access` and `user_access`. kas keeps them; GitLab evaluates them.

use serde::{Deserialize, Serialize};

use super::{
    InvalidValue,
    unset::{null_as_default, text},
};
use crate::{IdentityValue, identity_value::InvalidIdentityValue};

/// Section `ci_access`: the CI jobs that may use the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CiAccess {
    /// Projects, by their full path.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<CiAuthorization>,
    /// Groups with their descendants, by their full path.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<CiAuthorization>,
    /// All projects of the GitLab instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Empty>,
}

/// A project or group whose CI jobs may use the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CiAuthorization {
    /// The full path.
    pub id: String,
    /// The namespace in the kubeconfig of the job.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub default_namespace: Option<String>,
    /// The identity of the job in the cluster. The default is that of agentk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_as: Option<CiAccessAs>,
    /// Names of environments, which may contain `*`. The default is all jobs.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub environments: Vec<String>,
    /// True if only jobs of protected branches may use the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected_branches_only: Option<bool>,
    /// Resources that GitLab manages in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_management: Option<ResourceManagement>,
}

/// The identity of a CI job in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CiAccessAs {
    /// The identity of agentk.
    Agent(Empty),
    /// The identity of the job.
    CiJob(Empty),
    /// A user with a fixed name.
    Impersonate(Impersonate),
}

/// A user with a fixed name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Impersonate {
    /// The name of the user.
    pub username: String,
    /// The groups of the user.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The uid of the user.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Further attributes of the user.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<Extra>,
}

/// An attribute of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extra {
    /// The key.
    pub key: String,
    /// The values.
    pub val: Vec<String>,
}

/// Section `resource_management`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceManagement {
    /// True if GitLab may manage resources.
    #[serde(default, deserialize_with = "null_as_default")]
    pub enabled: bool,
}

/// Section `user_access`: the users who may use the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserAccess {
    /// The identity of the users in the cluster. The default is that of agentk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_as: Option<UserAccessAs>,
    /// Projects whose developers may use the agent.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<UserAuthorization>,
    /// Groups whose developers may use the agent.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<UserAuthorization>,
    /// All users of the GitLab instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Empty>,
}

/// The identity of a user in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserAccessAs {
    /// The identity of agentk.
    Agent(Empty),
    /// The identity of the user.
    User(Empty),
}

/// A project or group whose developers may use the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserAuthorization {
    /// The full path.
    pub id: String,
}

/// A section without keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// An entry with an invalid value at a key.
#[derive(Debug, thiserror::Error)]
enum InvalidEntry {
    #[error("{key} must not be empty")]
    Empty { key: String },
    #[error("{key} must have a value")]
    NoValue { key: String },
    #[error("{key} {error}")]
    Identity { key: String, error: InvalidIdentityValue },
}

impl CiAccess {
    /// Returns the key and the problem of the first invalid value.
    pub(super) fn validate(&self) -> Result<(), InvalidValue> {
        for (list, entries) in [("projects", &self.projects), ("groups", &self.groups)] {
            for (index, entry) in entries.iter().enumerate() {
                entry.validate().map_err(|invalid| {
                    InvalidValue::new(format!("ci_access.{list}"), format!("{list}[{index}].{invalid}"))
                })?;
            }
        }
        Ok(())
    }
}

impl CiAuthorization {
    fn validate(&self) -> Result<(), InvalidEntry> {
        not_empty("id", &self.id)?;
        let Some(CiAccessAs::Impersonate(user)) = &self.access_as else { return Ok(()) };
        let at = "access_as.impersonate";
        identity(&format!("{at}.username"), &user.username)?;
        user.groups.iter().try_for_each(|group| identity(&format!("{at}.groups"), group))?;
        user.uid
            .iter()
            .filter(|uid| !uid.is_empty())
            .try_for_each(|uid| identity(&format!("{at}.uid"), uid))?;
        for (index, extra) in user.extra.iter().enumerate() {
            not_empty(&format!("{at}.extra[{index}].key"), &extra.key)?;
            if extra.val.is_empty() {
                return Err(InvalidEntry::NoValue { key: format!("{at}.extra[{index}].val") });
            }
            extra.val.iter().try_for_each(|value| identity(&format!("{at}.extra[{index}].val"), value))?;
        }
        Ok(())
    }
}

impl UserAccess {
    /// Returns the key and the problem of the first invalid value.
    pub(super) fn validate(&self) -> Result<(), InvalidValue> {
        for (list, entries) in [("projects", &self.projects), ("groups", &self.groups)] {
            for (index, entry) in entries.iter().enumerate() {
                not_empty("id", &entry.id).map_err(|invalid| {
                    InvalidValue::new(format!("user_access.{list}"), format!("{list}[{index}].{invalid}"))
                })?;
            }
        }
        Ok(())
    }
}

fn not_empty(key: &str, text: &str) -> Result<(), InvalidEntry> {
    if text.is_empty() { Err(InvalidEntry::Empty { key: key.to_owned() }) } else { Ok(()) }
}

fn identity(key: &str, text: &str) -> Result<(), InvalidEntry> {
    let value = IdentityValue::new(text).map(drop);
    value.map_err(|error| InvalidEntry::Identity { key: key.to_owned(), error })
}

//! Sections `ci_access` and `user_access`. kas keeps them; GitLab evaluates them.

use request_info::prometheus::SeriesLabels;
use serde::{Deserialize, Serialize};

use super::{
    InvalidValue,
    unset::{null_as_default, text},
};
use crate::{
    IdentityValue, InvalidServiceRight, ServiceName, ServiceRight, Verb,
    identity_value::InvalidIdentityValue, verb::present,
};

/// The most elements of a list `services`.
pub const MAX_SERVICES: usize = 64;

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
    /// The services that its jobs may use, other than by default.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRight>,
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
    /// The services that users may use, other than by default.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<UserServiceRight>,
}

/// A service, and what the users with a role may do with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UserServiceEntry")]
pub struct UserServiceRight {
    /// The service with the verbs.
    #[serde(flatten)]
    pub right: ServiceRight,
    /// The least role. The default depends on the verb ([`Role::needed_for`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_role: Option<Role>,
}

/// The form of [`UserServiceRight`] in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserServiceEntry {
    service: ServiceName,
    #[serde(default, deserialize_with = "present")]
    verbs: Option<Vec<Verb>>,
    #[serde(default, deserialize_with = "present")]
    labels: Option<SeriesLabels>,
    minimum_role: Option<Role>,
}

/// A role of a user in a project or group of GitLab. GitLab lets nobody with a lesser role use an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Developer.
    Developer,
    /// Maintainer.
    Maintainer,
    /// Owner.
    Owner,
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
    #[error(
        "the service kubernetes is for everybody whom user_access admits; its roles in the cluster limit a user (access_as)"
    )]
    KubernetesOfUsers,
    #[error("{key}: the service provision is for jobs with an environment (resource_management)")]
    Provision { key: String },
    #[error("{key} has {count} elements; it may have {max}", max = MAX_SERVICES)]
    TooManyServices { key: String, count: usize },
    #[error(
        "{key}: the service {service} has labels, and is there twice for the same callers: write one element for it"
    )]
    SeveralLabels { key: String, service: ServiceName },
    #[error("{key}: the service {service} is reserved for kas")]
    ReservedService { key: String, service: ServiceName },
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
        of_jobs(&self.services)?;
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
        let invalid =
            |what: &InvalidEntry| InvalidValue::new("user_access.services".to_owned(), what.to_string());
        if self.services.iter().any(|entry| entry.right.service.as_str() == ServiceName::KUBERNETES) {
            return Err(invalid(&InvalidEntry::KubernetesOfUsers));
        }
        let rights = self.services.iter().map(|entry| (&entry.right, entry.least_role(Verb::Use)));
        of_callers("services", rights).map_err(|what| invalid(&what))
    }
}

impl Role {
    /// Returns the least role for a verb, if the configuration of the agent says no other one.
    pub fn needed_for(verb: Verb) -> Self {
        match verb {
            Verb::Use | Verb::Read => Self::Developer,
            Verb::Sync | Verb::Suspend | Verb::Approve => Self::Maintainer,
        }
    }

    /// Returns the role with a name of GitLab, or `None` if it is a lesser or an unknown one.
    pub fn of_gitlab(name: &str) -> Option<Self> {
        match name {
            "developer" => Some(Self::Developer),
            "maintainer" => Some(Self::Maintainer),
            "owner" => Some(Self::Owner),
            _ => None,
        }
    }
}

impl UserServiceRight {
    /// Returns the least role that gets a verb of the element.
    pub fn least_role(&self, verb: Verb) -> Role {
        self.minimum_role.unwrap_or_else(|| Role::needed_for(verb))
    }
}

impl TryFrom<UserServiceEntry> for UserServiceRight {
    type Error = InvalidServiceRight;

    fn try_from(entry: UserServiceEntry) -> Result<Self, InvalidServiceRight> {
        let UserServiceEntry { service, verbs, labels, minimum_role } = entry;
        Ok(Self { right: ServiceRight::of_entry(service, verbs, labels)?, minimum_role })
    }
}

/// Checks a list `services` of an entry of `ci_access`.
///
/// # Errors
///
/// The list is too long, jobs cannot have one of the services, or a service with labels is there twice. The error is a sentence.
pub fn check_services_of_jobs(services: &[ServiceRight]) -> Result<(), String> {
    of_jobs(services).map_err(|invalid| invalid.to_string())
}

fn of_jobs(services: &[ServiceRight]) -> Result<(), InvalidEntry> {
    // All elements of an entry are for the same callers.
    of_callers("services", services.iter().map(|right| (right, Role::Developer)))
}

/// Checks that there are few elements, each with the least role of its callers, and that callers can have these services.
fn of_callers<'a>(
    key: &str,
    rights: impl ExactSizeIterator<Item = (&'a ServiceRight, Role)> + Clone,
) -> Result<(), InvalidEntry> {
    let (key, count) = (key.to_owned(), rights.len());
    if count > MAX_SERVICES {
        return Err(InvalidEntry::TooManyServices { key, count });
    }
    for (index, (right, least)) in rights.clone().enumerate() {
        if right.service.as_str() == ServiceName::PROVISION {
            return Err(InvalidEntry::Provision { key });
        }
        if right.service.is_internal() {
            return Err(InvalidEntry::ReservedService { key, service: right.service.clone() });
        }
        // A caller could see the series of one of them, or of the other.
        let mut before = rights.clone().take(index).filter(|(other, _)| other.service == right.service);
        if before.any(|(other, of)| of == least && (other.labels.is_some() || right.labels.is_some())) {
            return Err(InvalidEntry::SeveralLabels { key, service: right.service.clone() });
        }
    }
    Ok(())
}

fn not_empty(key: &str, text: &str) -> Result<(), InvalidEntry> {
    if text.is_empty() { Err(InvalidEntry::Empty { key: key.to_owned() }) } else { Ok(()) }
}

fn identity(key: &str, text: &str) -> Result<(), InvalidEntry> {
    let value = IdentityValue::new(text).map(drop);
    value.map_err(|error| InvalidEntry::Identity { key: key.to_owned(), error })
}

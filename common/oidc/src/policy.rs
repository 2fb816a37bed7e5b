//! The rules for the tokens of one issuer.

use std::{path::Path, time::Duration};

use jsonwebtoken::Algorithm;
use serde_saphyr::Spanned;
use settings::ConfigError;

use super::EndpointUrl;
use crate::{IssuerConfig, SigningAlgorithm};

/// The beginning of the names that Kubernetes reserves for itself.
const KUBERNETES: &str = "system:";
/// The beginning of the names of GitLab's users, jobs and groups in a cluster.
const GITLAB: &str = "gitlab:";
/// The next word of these names. An issuer with the name `gitlab` has the same prefix, and GitLab's paths of groups are free.
const GITLAB_WORDS: [&str; 9] = [
    "user",
    "ci_job",
    "group",
    "group_env_tier",
    "group_role",
    "project",
    "project_env",
    "project_env_tier",
    "project_role",
];

/// The rules for the tokens of one issuer.
#[derive(Clone, Debug)]
pub(super) struct TokenPolicy {
    /// The name by which entries of the identity file refer to the issuer.
    pub(super) name: String,
    /// The expected `iss`.
    pub(super) issuer: String,
    pub(super) audiences: Vec<String>,
    pub(super) algorithms: Vec<Algorithm>,
    /// In seconds.
    pub(super) leeway: u64,
    /// The time for which streams continue after the expiration of their token, if they end.
    pub(super) stream_grace: Option<Duration>,
    pub(super) username: ClaimMapping,
    pub(super) groups: Option<ClaimMapping>,
}

/// A claim that becomes the name of a user, or the names of its groups.
#[derive(Clone, Debug)]
pub(super) struct ClaimMapping {
    pub(super) claim: String,
    pub(super) prefix: String,
    /// The beginnings of the names of others.
    pub(super) reserved: Vec<String>,
}

impl ClaimMapping {
    pub(super) fn new(claim: String, prefix: String) -> Self {
        let mut mapping = Self { claim, prefix, reserved: Vec::new() };
        for beginning in [KUBERNETES, GITLAB] {
            mapping.reserve(beginning);
        }
        mapping
    }

    /// Leaves the names with this beginning to others, unless all names of this mapping have it.
    fn reserve(&mut self, beginning: &str) {
        if !beginning.is_empty() && !self.prefix.starts_with(beginning) {
            self.reserved.push(beginning.to_owned());
        }
    }

    /// Returns whether a name belongs to others.
    pub(super) fn is_reserved(&self, name: &str) -> bool {
        let word = name.strip_prefix(GITLAB).and_then(|rest| rest.split(':').next());
        word.is_some_and(|word| GITLAB_WORDS.contains(&word))
            || self.reserved.iter().any(|beginning| name.starts_with(&**beginning))
    }
}

impl TokenPolicy {
    /// Checks one entry of `oidc.issuers`, whose position is `index`. Errors are about `file`.
    pub(super) fn new(file: &Path, index: usize, config: &IssuerConfig) -> Result<Self, ConfigError> {
        let error = |key: &str, at: serde_saphyr::Location, what: String| {
            ConfigError::new(file, at, format!("oidc.issuers[{index}].{key}"), what)
        };
        let name = &config.name.value;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty()
            || name.len() > 63
            || !name.chars().all(plain)
            || ["system", ".", ".."].contains(&&**name)
        {
            let what = "the name has 1 to 63 letters, digits, '-', '_' and '.', and is neither system nor a part of a path";
            return Err(error("name", config.name.referenced, what.to_owned()));
        }
        let issuer = &config.issuer;
        issuer
            .value
            .parse::<EndpointUrl>()
            .map_err(|cause| error("issuer", issuer.referenced, cause.to_string()))?;
        let audiences = &config.audiences;
        if audiences.value.is_empty() || audiences.value.iter().any(String::is_empty) {
            let what = "at least one audience is needed, and none may be empty: otherwise a token for another program is valid here";
            return Err(error("audiences", audiences.referenced, what.to_owned()));
        }
        if config.algorithms.is_empty() {
            return Err(error(
                "algorithms",
                config.name.referenced,
                "at least one algorithm is needed".to_owned(),
            ));
        }
        // RFC 6749 section 3.3.
        let is_scope = |scope: &String| {
            !scope.is_empty()
                && scope.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
        };
        if let Some(scopes) = &config.scopes
            && (scopes.value.is_empty() || !scopes.value.iter().all(is_scope))
        {
            let what = "scopes are a list of names without spaces and quotes, such as [openid, email, offline_access]";
            return Err(error("scopes", scopes.referenced, what.to_owned()));
        }
        if let Some(client) = config.web.as_ref().and_then(|web| web.client_id.as_ref())
            && !audiences.value.contains(&client.value)
        {
            let what = "the client is the audience of its ID tokens: add it to audiences";
            return Err(error("web.client_id", client.referenced, what.to_owned()));
        }
        let prefix = |key: &str, prefix: &Option<Spanned<String>>| match prefix {
            Some(prefix) if prefix.value.starts_with(KUBERNETES) => {
                let what = format!("names that begin with {KUBERNETES} belong to Kubernetes");
                Err(error(key, prefix.referenced, what))
            }
            Some(prefix) => Ok(prefix.value.clone()),
            None => Ok(format!("{name}:")),
        };
        let groups_prefix = prefix("groups_prefix", &config.groups_prefix)?;
        Ok(Self {
            name: name.clone(),
            issuer: issuer.value.clone(),
            audiences: audiences.value.clone(),
            algorithms: config.algorithms.iter().copied().map(SigningAlgorithm::algorithm).collect(),
            leeway: config.leeway.as_secs(),
            stream_grace: config.stream_grace.0,
            username: ClaimMapping::new(
                config.username_claim.clone(),
                prefix("username_prefix", &config.username_prefix)?,
            ),
            groups: config.groups_claim.clone().map(|claim| ClaimMapping::new(claim, groups_prefix)),
        })
    }

    /// Leaves the names with the prefixes of another issuer to its tokens.
    pub(super) fn reserve_names_of(&mut self, other: &Self) {
        self.username.reserve(&other.username.prefix);
        if let (Some(groups), Some(others)) = (&mut self.groups, &other.groups) {
            groups.reserve(&others.prefix);
        }
    }
}

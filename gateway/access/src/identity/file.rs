//! The identity file: its format and its validation.

mod services;

use std::{
    collections::{BTreeMap, hash_map::Entry},
    path::{Path, PathBuf},
    sync::Arc,
};

use proto::{AgentId, AgentName, IdentityValue, impersonation::Impersonation};
use request_info::prometheus::SeriesLabels;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{AllowedNetworks, Budget, ConfigError, Network, parse_with_budget};
use tokio_util::sync::CancellationToken;

use self::services::ServiceEntry;
use super::{
    AccessAs, AllowedAgents, Caller, Grant, Identity, Rights,
    configuration::ConfigurationEntry,
    dial_target::{AgentUrl, DialEntry, InvalidDialKey},
    gitlab_agents::GitLabAgents,
    oidc::{ClaimRule, ClaimValues, OidcAccess, OidcRule},
};
use crate::token::TokenHash;

/// The tokens that one agent may have: the current one and its replacement.
const MAX_AGENT_TOKENS: usize = 2;

/// The largest file, in bytes. An agent with two tokens takes about 230 bytes.
const MAX_BYTES: u64 = 512 << 20;

/// Returns the limits of the YAML parser: enough for a million agents with a project and two tokens (11 nodes each), and their
/// callers.
fn budget() -> Budget {
    let mut budget = Budget::default();
    budget.max_nodes = 16_000_000;
    budget.max_events = 32_000_000;
    budget.max_total_scalar_bytes = 512 << 20;
    budget
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    agents: Vec<AgentEntry>,
    #[serde(default)]
    callers: Vec<CallerEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentEntry {
    id: Spanned<u64>,
    name: Spanned<AgentName>,
    #[serde(default)]
    project_id: Option<u64>,
    tokens: Spanned<Vec<Spanned<TokenHash>>>,
    #[serde(default)]
    configuration: Option<ConfigurationEntry>,
    /// The UID of the only cluster in which the tokens may be used.
    #[serde(default)]
    cluster: Option<Spanned<String>>,
    #[serde(default)]
    allowed_networks: Option<Spanned<Vec<Network>>>,
    #[serde(default)]
    url: Option<Spanned<AgentUrl>>,
    #[serde(default)]
    tunnels: Option<Spanned<u16>>,
    #[serde(default)]
    ca_file: Option<Spanned<PathBuf>>,
    #[serde(default)]
    key_file: Option<Spanned<PathBuf>>,
    #[serde(default)]
    tls_server_name: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerEntry {
    name: Spanned<String>,
    #[serde(default)]
    tokens: Option<Vec<Spanned<TokenHash>>>,
    #[serde(default)]
    oidc: Option<OidcEntry>,
    /// Names or ids of agents, or `*`; agents of GitLab after `gitlab:`.
    agents: Vec<Spanned<String>>,
    /// Services with their verbs, or `*`.
    services: Vec<Spanned<ServiceEntry>>,
    #[serde(default)]
    access_as: Option<Spanned<AccessAsEntry>>,
    #[serde(default)]
    prometheus: Option<PrometheusEntry>,
    #[serde(default)]
    allowed_networks: Option<Spanned<Vec<Network>>>,
    /// May read about the requests of all callers.
    #[serde(default)]
    audit: bool,
    /// May read the audit logs of the clusters of its agents.
    #[serde(default)]
    cluster_audit: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OidcEntry {
    /// The name of an issuer in the configuration of kas.
    issuer: Spanned<String>,
    /// The values that each claim may have.
    claims: Spanned<BTreeMap<String, ClaimValues>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrometheusEntry {
    /// The values that each label may have.
    labels: Spanned<BTreeMap<String, Vec<String>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum AccessAsEntry {
    Agent(Empty),
    User(Empty),
    Impersonate(Box<Spanned<ImpersonateEntry>>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImpersonateEntry {
    username: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    extra: Vec<ExtraEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtraEntry {
    key: String,
    val: Vec<String>,
}

impl Identity {
    /// Reads an identity file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = files::read_text_at_most(path, MAX_BYTES);
        let text = text.map_err(|error| ConfigError::whole(path, files::unreadable(&error)))?;
        Self::parse(path, &text)
    }

    /// Parses the text of an identity file; `path` is for errors.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        build(path, parse_with_budget::<Option<File>>(path, text, budget())?)
    }
}

fn build(path: &Path, file: Option<File>) -> Result<Identity, ConfigError> {
    // An editor or `>` may leave the file empty for a moment. That must not revoke any token.
    let file = file.ok_or_else(|| {
        ConfigError::whole(path, "the file is empty: to have neither agents nor callers, write agents: []")
    })?;
    let mut identity = Identity::default();
    for (index, agent) in file.agents.into_iter().enumerate() {
        add_agent(&mut identity, agent, &At { path, key: format!("agents[{index}]") })?;
    }
    for (index, caller) in file.callers.into_iter().enumerate() {
        add_caller(&mut identity, caller, &At { path, key: format!("callers[{index}]") })?;
    }

    Ok(identity)
}

fn add_agent(identity: &mut Identity, agent: AgentEntry, at: &At<'_>) -> Result<(), ConfigError> {
    let id = AgentId(agent.id.value);
    if identity.agents.contains_key(&id) {
        return Err(at.error("id", &agent.id, format!("another agent has the id {id}")));
    }
    if identity.agents_by_name.contains_key(&agent.name.value) {
        return Err(at.error(
            "name",
            &agent.name,
            format!("another agent has the name {}", agent.name.value),
        ));
    }
    if agent.tokens.value.len() > MAX_AGENT_TOKENS {
        let what =
            format!("an agent has at most {MAX_AGENT_TOKENS} tokens: the current one and its replacement");
        return Err(at.error("tokens", &agent.tokens, what));
    }

    for token in agent.tokens.value {
        match identity.agent_tokens.entry(token.value) {
            Entry::Vacant(vacant) => vacant.insert(id),
            Entry::Occupied(_) => return Err(at.error("tokens", &token, "the token is listed twice")),
        };
    }
    let dialled = DialEntry {
        url: agent.url,
        tunnels: agent.tunnels,
        ca_file: agent.ca_file,
        key_file: agent.key_file,
        tls_server_name: agent.tls_server_name,
    };
    let directory = at.path.parent().unwrap_or_else(|| Path::new(""));
    let target = dialled.validate(directory).map_err(|InvalidDialKey { key, location, problem }| {
        ConfigError::new(at.path, location, format!("{}.{key}", at.key), problem.to_string())
    })?;
    identity.dial_targets.extend(target.map(|target| (id, target)));
    let networks = networks(agent.allowed_networks, at)?;
    identity.agent_networks.extend(networks.map(|networks| (id, networks)));
    identity.agents_by_name.insert(agent.name.value.clone(), id);
    identity.agents.insert(id, agent.name.value);
    if let Some(cluster) = agent.cluster {
        if cluster.value.is_empty() || !cluster.value.bytes().all(|b| b.is_ascii_graphic()) {
            let what = "write the UID of the cluster: kubectl get namespace kube-system -o jsonpath='{.metadata.uid}'";
            return Err(at.error("cluster", &cluster, what));
        }
        identity.clusters.insert(id, cluster.value);
    }
    identity.projects.extend(agent.project_id.map(|project| (id, project)));
    if let Some(entry) = agent.configuration {
        let key = format!("{}.configuration", at.key);
        identity.configurations.insert(id, entry.validate(at.path, &key)?);
    }
    Ok(())
}

fn add_caller(identity: &mut Identity, entry: CallerEntry, at: &At<'_>) -> Result<(), ConfigError> {
    if IdentityValue::new(&entry.name.value).is_err() || entry.name.value.contains(':') {
        let what = "a caller needs a name without ':' (basic authentication), control characters, and blanks around it";
        return Err(at.error("name", &entry.name, what));
    }

    let (of_gitlab, of_file): (Vec<_>, Vec<_>) =
        entry.agents.into_iter().partition(|name| name.value.starts_with(GitLabAgents::PREFIX));
    let agents = file_agents(identity, &of_file, at)?;
    let of_gitlab = of_gitlab.iter().map(|name| {
        let text = name.value.strip_prefix(GitLabAgents::PREFIX).unwrap_or_default();
        text.parse::<GitLabAgents>().map_err(|invalid| at.error("agents", name, invalid.to_string()))
    });
    let gitlab_agents = of_gitlab.collect::<Result<_, _>>()?;
    let services = services::rights(entry.services, at)?;
    let labels = entry.prometheus.map(|entry| {
        SeriesLabels::new(entry.labels.value.clone())
            .map_err(|error| at.error("prometheus.labels", &entry.labels, error.to_string()))
    });
    let (labels, networks) = (labels.transpose()?, networks(entry.allowed_networks, at)?.unwrap_or_default());
    let rights = Rights {
        name: entry.name.value.clone(),
        agents,
        gitlab_agents,
        services,
        labels,
        networks,
        audit: entry.audit,
        cluster_audit: entry.cluster_audit,
    };
    let access = match entry.access_as {
        None => OidcAccess::Fixed(AccessAs::Agent),
        Some(access_as) => {
            let location = access_as.referenced;
            match access_as.value {
                AccessAsEntry::Agent(Empty {}) => OidcAccess::Fixed(AccessAs::Agent),
                AccessAsEntry::Impersonate(entry) => OidcAccess::Fixed(impersonation(*entry, at)?),
                AccessAsEntry::User(Empty {}) if entry.oidc.is_some() && entry.tokens.is_none() => {
                    OidcAccess::User
                }
                AccessAsEntry::User(Empty {}) => {
                    let what =
                        "only an OIDC token has a user: this needs the key oidc, and an entry without tokens";
                    return Err(ConfigError::new(
                        at.path,
                        location,
                        format!("{}.access_as.user", at.key),
                        what,
                    ));
                }
            }
        }
    };
    if entry.tokens.is_none() && entry.oidc.is_none() {
        return Err(at.error("name", &entry.name, "a caller needs tokens, oidc or both"));
    }

    if let OidcAccess::Fixed(access_as) = &access {
        let access_as = access_as.clone();
        let caller = Arc::new(Caller { rights: rights.clone(), access_as, user: None, job: None });
        add_tokens(identity, entry.tokens.unwrap_or_default(), &caller, at)?;
    }
    if let Some(oidc) = entry.oidc {
        let claims = claim_rules(oidc.claims, at)?;
        identity.oidc_rules.push(OidcRule {
            issuer: oidc.issuer.value,
            location: oidc.issuer.referenced,
            key: at.key.clone(),
            claims,
            rights,
            access,
            revoked: CancellationToken::new(),
            in_flight: Arc::default(),
        });
    }
    Ok(())
}

fn add_tokens(
    identity: &mut Identity,
    tokens: Vec<Spanned<TokenHash>>,
    caller: &Arc<Caller>,
    at: &At<'_>,
) -> Result<(), ConfigError> {
    let in_flight = Arc::default();
    for token in tokens {
        if identity.agent_tokens.contains_key(&token.value) {
            return Err(at.error(
                "tokens",
                &token,
                "the token belongs to an agent; create another one for the caller",
            ));
        }
        match identity.caller_tokens.entry(token.value) {
            Entry::Vacant(vacant) => vacant.insert(Arc::new(Grant {
                caller: Arc::clone(caller),
                revoked: CancellationToken::new(),
                in_flight: Arc::clone(&in_flight),
                streams_end: None,
            })),
            Entry::Occupied(_) => return Err(at.error("tokens", &token, "the token is listed twice")),
        };
    }
    Ok(())
}

fn claim_rules(
    claims: Spanned<BTreeMap<String, ClaimValues>>,
    at: &At<'_>,
) -> Result<Vec<ClaimRule>, ConfigError> {
    if claims.value.is_empty() || claims.value.values().any(|ClaimValues(values)| values.is_empty()) {
        let what = "at least one claim is needed, each with a value; `iss` with the URL of the issuer admits all of its tokens";
        return Err(at.error("oidc.claims", &claims, what));
    }
    let rules = claims.value.into_iter().map(|(name, ClaimValues(values))| ClaimRule { name, values });
    Ok(rules.collect())
}

fn file_agents(
    identity: &Identity,
    names: &[Spanned<String>],
    at: &At<'_>,
) -> Result<AllowedAgents, ConfigError> {
    if names.iter().any(|name| name.value == "*") {
        return Ok(AllowedAgents::All);
    }
    let agents = names.iter().map(|name| {
        identity.find(&name.value).ok_or_else(|| {
            let what = format!(
                "there is no agent {:?} in this file; those of GitLab are gitlab:<id>, gitlab:group/project:name and gitlab:group/**",
                name.value
            );
            at.error("agents", name, what)
        })
    });
    Ok(AllowedAgents::Only(agents.collect::<Result<_, _>>()?))
}

/// Returns the networks of an entry, if it has the key. An empty list would allow every address, and look like none.
fn networks(
    list: Option<Spanned<Vec<Network>>>,
    at: &At<'_>,
) -> Result<Option<AllowedNetworks>, ConfigError> {
    let Some(list) = list else { return Ok(None) };
    if list.value.is_empty() {
        let what =
            "the list is empty: name a network, such as 10.0.0.0/8, or remove the key to allow every address";
        return Err(at.error("allowed_networks", &list, what));
    }
    Ok(Some(AllowedNetworks::new(&list.value)))
}

fn impersonation(entry: Spanned<ImpersonateEntry>, at: &At<'_>) -> Result<AccessAs, ConfigError> {
    let place = entry.referenced;
    let entry = entry.value;
    let who = Impersonation {
        username: entry.username,
        uid: entry.uid,
        groups: entry.groups,
        extra: entry.extra.into_iter().map(|extra| (extra.key, extra.val)).collect(),
    };
    let headers = who.headers().map_err(|error| {
        let key = format!("{}.access_as.impersonate.{}", at.key, error.field);
        ConfigError::new(at.path, place, key, error.to_string())
    })?;
    Ok(AccessAs::Impersonate { username: who.username, headers })
}

/// The position in the file, for errors.
struct At<'a> {
    path: &'a Path,
    key: String,
}

impl At<'_> {
    fn error<T>(&self, key: &str, value: &Spanned<T>, what: impl Into<String>) -> ConfigError {
        ConfigError::new(self.path, value.referenced, format!("{}.{key}", self.key), what)
    }
}

#[cfg(test)]
mod tests;

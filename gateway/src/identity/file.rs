//! The identity file: its format and its validation.

use std::{
    collections::{BTreeMap, hash_map::Entry},
    path::Path,
    sync::Arc,
};

use proto::{
    AgentId, AgentName, ServiceName,
    impersonation::Impersonation,
    yaml::{Budget, parse_with_budget},
};
use serde::Deserialize;
use serde_saphyr::Spanned;
use tokio_util::sync::CancellationToken;

use super::{AccessAs, Allowed, Caller, Grant, Identity, configuration::ConfigurationEntry};
use crate::{
    config::{self, ConfigError},
    promql::Labels,
    token::TokenHash,
};

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
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerEntry {
    name: Spanned<String>,
    tokens: Spanned<Vec<Spanned<TokenHash>>>,
    /// Names or ids of agents, or `*`.
    agents: Vec<Spanned<String>>,
    /// Names of services, or `*`.
    services: Vec<Spanned<String>>,
    #[serde(default)]
    access_as: Option<AccessAsEntry>,
    #[serde(default)]
    prometheus: Option<PrometheusEntry>,
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
        let text = text.map_err(|error| ConfigError::whole(path, config::unreadable(&error)))?;
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
    identity.agents_by_name.insert(agent.name.value.clone(), id);
    identity.agents.insert(id, agent.name.value);
    identity.projects.extend(agent.project_id.map(|project| (id, project)));
    if let Some(entry) = agent.configuration {
        let key = format!("{}.configuration", at.key);
        identity.configurations.insert(id, entry.validate(at.path, &key)?);
    }
    Ok(())
}

fn add_caller(identity: &mut Identity, entry: CallerEntry, at: &At<'_>) -> Result<(), ConfigError> {
    if entry.name.value.is_empty() || entry.name.value.contains(|c: char| c == ':' || c.is_control()) {
        let what = "a caller needs a name without ':' (basic authentication) and without control characters";
        return Err(at.error("name", &entry.name, what));
    }

    let agents = allowed(&entry.agents, at, "agents", |name| {
        identity.find(name).ok_or_else(|| format!("there is no agent {name:?} in this file"))
    })?;
    let services = allowed(&entry.services, at, "services", |name| {
        let service: ServiceName = name.parse().map_err(|error| format!("{error}"))?;
        if service.is_internal() {
            return Err(format!("the service '{service}' is reserved for kas"));
        }
        Ok(service)
    })?;
    let access_as = match entry.access_as {
        None | Some(AccessAsEntry::Agent(Empty {})) => AccessAs::Agent,
        Some(AccessAsEntry::Impersonate(entry)) => impersonation(*entry, at)?,
    };
    let labels = entry.prometheus.map(|entry| {
        Labels::new(&entry.labels.value)
            .map_err(|error| at.error("prometheus.labels", &entry.labels, error.to_string()))
    });
    let labels = labels.transpose()?;
    let caller = Arc::new(Caller { name: entry.name.value, agents, services, access_as, labels });
    let in_flight = Arc::default();
    for token in entry.tokens.value {
        if identity.agent_tokens.contains_key(&token.value) {
            return Err(at.error(
                "tokens",
                &token,
                "the token belongs to an agent; create another one for the caller",
            ));
        }
        match identity.caller_tokens.entry(token.value) {
            Entry::Vacant(vacant) => vacant.insert(Arc::new(Grant {
                caller: Arc::clone(&caller),
                revoked: CancellationToken::new(),
                in_flight: Arc::clone(&in_flight),
            })),
            Entry::Occupied(_) => return Err(at.error("tokens", &token, "the token is listed twice")),
        };
    }
    Ok(())
}

fn allowed<T>(
    names: &[Spanned<String>],
    at: &At<'_>,
    key: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Allowed<T>, ConfigError> {
    if names.iter().any(|name| name.value == "*") {
        return Ok(Allowed::All);
    }

    let parsed = names.iter().map(|name| parse(&name.value).map_err(|what| at.error(key, name, what)));
    Ok(Allowed::Only(parsed.collect::<Result<_, _>>()?))
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
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::{identity::ConfigurationLocation, repository::Location};

    fn hash(token: &str) -> TokenHash {
        TokenHash::of(&SecretString::from(token))
    }

    fn parse(text: &str) -> Result<Identity, String> {
        Identity::parse(Path::new("id.yaml"), text).map_err(|error| error.to_string())
    }

    fn example() -> String {
        format!(
            "agents:\n- {{id: 1, name: prod, tokens: ['{}']}}\n- {{id: 2, name: test, tokens: ['{}']}}\n\
             callers:\n- name: ci\n  tokens: ['{}']\n  agents: [prod]\n  services: [kubernetes]\n  \
             access_as: {{impersonate: {{username: 'ci', groups: ['jobs'], extra: [{{key: a/b, val: [c]}}]}}}}\n\
             - {{name: ops, tokens: ['{}'], agents: ['*'], services: ['*']}}\n",
            hash("a"),
            hash("b"),
            hash("c"),
            hash("d"),
        )
    }

    #[test]
    fn agents_and_callers_are_found_by_token() {
        let identity = parse(&example()).unwrap();
        assert_eq!(identity.agent(&"a".to_owned().into()).unwrap().id, AgentId(1));
        assert!(identity.agent(&"c".to_owned().into()).is_none(), "a caller is no agent");
        assert_eq!(identity.find("test"), Some(AgentId(2)));
        assert_eq!(identity.find("2"), Some(AgentId(2)));
        assert_eq!(identity.find("3"), None);

        let ci = &identity.grant(&"c".to_owned().into()).unwrap().caller;
        assert!(ci.may_use(AgentId(1)) && !ci.may_use(AgentId(2)));
        assert!(
            ci.may_use_service(&"kubernetes".parse().unwrap())
                && !ci.may_use_service(&"prometheus".parse().unwrap())
        );
        assert!(matches!(&ci.access_as, AccessAs::Impersonate { username, .. } if username == "ci"));
        let ops = &identity.grant(&"d".to_owned().into()).unwrap().caller;
        assert!(ops.may_use(AgentId(2)));
        assert_eq!(ops.access_as, AccessAs::Agent);
        assert_eq!(identity.agents_of(ci).len(), 1);
    }

    #[test]
    fn streams_continue_with_unchanged_rights() {
        let grant =
            |identity: &Identity, token: &str| identity.grant(&token.to_owned().into()).unwrap().clone();
        let former = parse(&example()).unwrap();
        let (ci, ops) = (grant(&former, "c"), grant(&former, "d"));

        let mut narrowed = parse(&example().replace("agents: ['*']", "agents: [test]")).unwrap();
        narrowed.inherit(&former);
        assert!(!ci.revoked.is_cancelled());
        assert!(ops.revoked.is_cancelled(), "it may use less than before");
        assert!(!grant(&narrowed, "d").revoked.is_cancelled(), "and may come back");

        let labels = "services: ['*'], prometheus: {labels: {ns: [a]}}";
        let (limited, wider) = (example().replace("services: ['*']", labels), example());
        let (limited, mut wider) = (parse(&limited).unwrap(), parse(&wider).unwrap());
        wider.inherit(&limited);
        assert!(grant(&limited, "d").revoked.is_cancelled(), "other labels are other rights");
        let prometheus = "prometheus".parse().unwrap();
        assert!(grant(&limited, "d").caller.labels(&prometheus).is_some());
        assert!(grant(&limited, "d").caller.labels(&"kubernetes".parse().unwrap()).is_none());
        assert!(grant(&wider, "d").caller.labels(&prometheus).is_none());

        let busy = Arc::clone(&grant(&former, "c").in_flight);
        let both = format!("{}', '{}", hash("c"), hash("new"));
        let mut rotated = parse(&example().replace(&hash("c").to_string(), &both)).unwrap();
        rotated.inherit(&former);
        assert!(
            Arc::ptr_eq(&grant(&rotated, "new").in_flight, &busy),
            "one limit for all tokens of a caller"
        );

        Identity::default().inherit(&narrowed);
        assert!(ci.revoked.is_cancelled());
    }

    #[test]
    fn file_with_more_nodes_than_the_library_reads_by_default_is_read() {
        let nodes = Budget::default().max_nodes + 1;
        let text = format!(
            "callers: [{{name: a, tokens: [], agents: [{}], services: []}}]",
            "x,\n".repeat(nodes) + "'*'"
        );
        assert!(parse(&text).is_ok());
    }

    #[test]
    fn configuration_of_an_agent_is_a_file_or_a_repository() {
        let text = "agents:\n- {id: 1, name: a, tokens: [], configuration: {file: agents/a.yaml}}\n\
                    - {id: 2, name: b, tokens: [], configuration: {repository: {url: 'https://host/p.git', \
                    password_file: token}}}\n- {id: 3, name: c, tokens: []}";
        let identity = Identity::parse(Path::new("/etc/kas/id.yaml"), text).unwrap();
        let file = ConfigurationLocation::File("/etc/kas/agents/a.yaml".into());
        assert_eq!(identity.configuration(AgentId(1)), Some(&file));
        let Some(ConfigurationLocation::Repository(repository)) = identity.configuration(AgentId(2)) else {
            panic!("agent 2 has a repository");
        };
        let password = Some(("git".to_owned(), "/etc/kas/token".into()));
        assert!(
            matches!(&repository.location, Location::Https { credentials, .. } if *credentials == password)
        );
        assert_eq!(identity.configuration(AgentId(3)), None);
    }

    #[test]
    fn invalid_entry_is_refused_with_its_position() {
        for (text, expected) in [
            ("agents: [{id: 1, name: UP, tokens: []}]", "agents[0].name"),
            ("agents: [{id: 1, name: a, tokens: [secret]}]", "sha256:"),
            (
                "agents:\n- {id: 1, name: a, tokens: []}\n- {id: 1, name: b, tokens: []}",
                "id.yaml:3:8: agents[1].id: another agent has the id 1",
            ),
            (
                "callers: [{name: a, tokens: [], agents: [x], services: ['*']}]",
                "callers[0].agents: there is no agent \"x\"",
            ),
            ("callers: [{name: a, tokens: [], agents: ['*'], services: [control]}]", "reserved for kas"),
            ("callers: [{name: 'a:b', tokens: [], agents: [], services: []}]", "without ':'"),
            (
                "callers: [{name: a, tokens: [], agents: ['*'], services: [configuration]}]",
                "'configuration' is reserved for kas",
            ),
            (
                "callers: [{name: a, tokens: [], agents: [], services: [], access_as: {impersonate: {username: ''}}}]",
                "must not be empty",
            ),
            (
                "callers: [{name: a, tokens: [], agents: [], services: [], access_as: {root: {}}}]",
                "unknown variant",
            ),
            (
                "callers: [{name: a, tokens: [], agents: [], services: [], prometheus: {labels: {}}}]",
                "callers[0].prometheus.labels: at least one label",
            ),
            (
                "callers: [{name: a, tokens: [], agents: [], services: [], prometheus: {label: {a: [b]}}}]",
                "unknown field `label`",
            ),
            (
                "agents: [{id: 1, name: a, tokens: [], configuration: {repository: {url: 'http://host/a'}}}]",
                "agents[0].configuration.repository.url: a repository decides",
            ),
            ("agents: [{id: 1, name: a, tokens: [], configuration: {files: a}}]", "agents[0].configuration"),
            ("people: []", "unknown field `people`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}\n gave {error}");
        }

        let three = format!("agents: [{{id: 1, name: a, tokens: ['{0}', '{0}', '{0}']}}]", hash("a"));
        assert!(parse(&three).unwrap_err().contains("at most 2 tokens"));
        let twice = format!("agents: [{{id: 1, name: a, tokens: ['{0}', '{0}']}}]", hash("a"));
        assert!(parse(&twice).unwrap_err().contains("listed twice"));
    }
}

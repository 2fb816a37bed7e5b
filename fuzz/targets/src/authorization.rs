//! `AccessControl::authorize` with any `Authorization` headers, at any path.
//!
//! Input: the path, then the value of one `Authorization` header per line.
//!
//! * The function grants access to the caller and the agent that a second implementation finds, and to no other.
//! * Neither a failure nor the response built from it contains a known token or the credential of the request.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::{Arc, LazyLock},
};

use access::{
    AccessControl, CallerAuthorizer, ErrorDialect, ErrorFormat, FileCallers, Identities, Identity,
    RequestError, Target, UnknownCredentials, UrlPathPrefix, token::TokenHash,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION, uri::PathAndQuery};
use kas_gitlab::GitLabSessions;
use prometheus_client::metrics::counter::Counter;
use secrecy::SecretString;

/// A caller's token, name, agents and services.
struct KnownCaller {
    token: &'static str,
    name: &'static str,
    agents: &'static [u64],
    services: Option<&'static [&'static str]>,
}

/// One token contains `pat:2:`, the prefix of a credential that names an agent.
const CALLERS: &[KnownCaller] = &[
    KnownCaller { token: "caller-A-0123456789", name: "ci", agents: &[1], services: Some(&["kubernetes"]) },
    KnownCaller { token: "caller-B-0123456789", name: "ops", agents: &[1, 2], services: None },
    KnownCaller { token: "pat:2:caller-C-01234", name: "odd", agents: &[1, 2], services: None },
];
const AGENT_TOKEN: &str = "agent-tok-0123456789";
const AGENTS: &[(&str, u64)] = &[("prod", 1), ("test", 2)];

static ACCESS: LazyLock<AccessControl> = LazyLock::new(|| {
    let hash = |token: &str| TokenHash::of(&SecretString::from(token));
    let text = format!(
        "agents:\n- {{id: 1, name: prod, tokens: ['{}']}}\n- {{id: 2, name: test, tokens: []}}\n\
         callers:\n- {{name: ci, tokens: ['{}'], agents: [prod], services: [kubernetes]}}\n\
         - {{name: ops, tokens: ['{}'], agents: ['*'], services: ['*']}}\n\
         - {{name: odd, tokens: ['{}'], agents: ['*'], services: ['*']}}\n",
        hash(AGENT_TOKEN),
        hash(CALLERS[0].token),
        hash(CALLERS[1].token),
        hash(CALLERS[2].token),
    );
    let identity = Identity::parse(Path::new("identity.yaml"), &text).expect("the identity is valid");
    // Every input comes from one address, and none may get a refusal for its rate.
    let unknown = UnknownCredentials::new(u32::MAX, Counter::default());
    AccessControl::new(
        [Arc::new(FileCallers::new(Identities::new(identity), None)) as Arc<dyn CallerAuthorizer>],
        Arc::new(GitLabSessions),
        Arc::new(unknown),
    )
});

/// Texts of failures that do not depend on the credential. A generated token may be a part of them by chance.
static VOCABULARY: LazyLock<String> = LazyLock::new(|| {
    let failure_texts = |path: &'static str, values: &[&'static str]| {
        let path = PathAndQuery::from_static(path);
        let target = Target::parse(&path, &UrlPathPrefix::default()).expect("it is a target");
        let headers = values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_static(value))).collect();
        match access(&headers, &target) {
            Ok(_) => String::new(),
            Err(failure) => all_texts(&failure),
        }
    };
    let known = "Bearer caller-A-0123456789";
    [
        failure_texts("/k8s-proxy/", &[]),
        failure_texts("/k8s-proxy/", &["Bearer x", "Bearer x"]),
        failure_texts("/k8s-proxy/", &["x"]),
        failure_texts("/k8s-proxy/", &["Bearer"]),
        failure_texts("/k8s-proxy/", &["Bearer x"]),
        failure_texts("/k8s-proxy/", &[known]),
        failure_texts("/agents/nobody/kubernetes/", &[known]),
        failure_texts("/agents/prod/prometheus/", &[known]),
        failure_texts("/agents/prod/kubernetes/", &["Bearer ci:2:caller-A-0123456789"]),
        failure_texts("/agents/nobody/kubernetes/", &["Bearer caller-B-0123456789"]),
    ]
    .concat()
});

/// Checks one input.
pub fn run(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let Some(Ok(path)) = lines.next().map(PathAndQuery::try_from) else { return };
    let Ok(target) = Target::parse(&path, &UrlPathPrefix::default()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines {
        let Ok(value) = HeaderValue::from_bytes(line) else { return };
        headers.append(AUTHORIZATION, value);
    }

    let expected = expected_access(&headers, &target);
    match access(&headers, &target) {
        Ok((caller, agent)) => {
            let granted = (&*caller, agent);
            assert_eq!(Some(granted), expected, "{path} {headers:?}");
        }
        Err(failure) => {
            assert_eq!(expected, None, "{path} {headers:?}: {failure}");
            let texts = all_texts(&failure);
            let known = CALLERS.iter().map(|known| known.token).chain([AGENT_TOKEN]).map(str::to_owned);
            for secret in known.chain(headers.values().flat_map(secrets)) {
                let shown = secret.len() >= 8
                    && texts.contains(&secret)
                    && !path.as_str().contains(&secret)
                    && !VOCABULARY.contains(&secret);
                assert!(!shown, "{secret:?} is shown: {texts}");
            }
        }
    }
}

fn access(headers: &HeaderMap, target: &Target<'_>) -> Result<(String, u64), RequestError> {
    let address = Ipv4Addr::new(192, 0, 2, 1).into();
    let caller = ACCESS.authorize(headers, target, address).now_or_never();
    let caller = caller.expect("the identity file needs no I/O")?;
    Ok((caller.grant.caller.name().to_owned(), caller.agent.0))
}

/// Returns the caller and the agent that may be accessed. This second implementation follows the documentation.
fn expected_access(headers: &HeaderMap, target: &Target<'_>) -> Option<(&'static str, u64)> {
    let mut values = headers.values();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let value = value.to_str().ok()?;
    let (scheme, rest) = value.split_at(value.find(' ')?);
    let rest = rest.trim();
    let (name, credential) = match &*scheme.to_ascii_lowercase() {
        "bearer" => (None, rest.to_owned()),
        "basic" => {
            let decoded = String::from_utf8(STANDARD.decode(rest).ok()?).ok()?;
            let (name, password) = decoded.split_once(':')?;
            (Some(name.to_owned()), password.to_owned())
        }
        _ => return None,
    };
    let parts: Vec<&str> = credential.splitn(3, ':').collect();
    let (named, token) = match *parts {
        [token] => (None, token),
        ["ci" | "pat", agent, token] => (Some(id(agent)?), token),
        _ => return None,
    };
    let known = CALLERS.iter().find(|known| known.token == token)?;
    if name.is_some_and(|name| name != known.name) {
        return None;
    }

    let agent = match target.agent.as_deref() {
        Some(agent) => AGENTS.iter().find(|(name, known)| *name == agent || Some(*known) == id(agent))?.1,
        None => named?,
    };
    let service = target.service.as_str();
    let allowed = known.agents.contains(&agent)
        && known.services.is_none_or(|services| services.contains(&service))
        && named.is_none_or(|named| named == agent);
    allowed.then_some((known.name, agent))
}

/// Returns each part of a value that may be a token: the whole value, the text after the scheme, its base64 decoding, and
/// the text after each colon.
fn secrets(value: &HeaderValue) -> Vec<String> {
    let whole = String::from_utf8_lossy(value.as_bytes()).into_owned();
    let rest = whole.split_once(' ').map_or("", |(_, rest)| rest).trim().to_owned();
    let decoded = STANDARD.decode(&rest).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let mut secrets = vec![whole, rest];
    secrets.extend(decoded);
    for index in 0..secrets.len() {
        let mut text = secrets[index].clone();
        while let Some((_, tail)) = text.split_once(':') {
            text = tail.to_owned();
            secrets.push(text.clone());
        }
    }
    secrets
}

fn all_texts(failure: &RequestError) -> String {
    let id = HeaderValue::from_static("id-1");
    let answers = [ErrorDialect::Kubernetes, ErrorDialect::Prometheus, ErrorDialect::Plain].map(|dialect| {
        format!(
            "{:?}",
            failure.render(&ErrorFormat::new(dialect, &HeaderMap::new()), &id, None, None).headers()
        )
    });
    format!("{failure} {failure:?} {}", answers.concat())
}

/// Parses an id in its canonical spelling only.
fn id(text: &str) -> Option<u64> {
    text.parse().ok().filter(|id: &u64| id.to_string() == text)
}

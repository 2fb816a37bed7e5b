//! Enforces the scope of an agent: requests may reach its namespaces only.
//!
//! The scope in force is the intersection of two: that of `--namespaces`, which the owner of the cluster sets, and that of the
//! agent's configuration, which kas sends. With `--require-scope`, no namespace is in scope while there is no scope of the
//! configuration.

use std::{fmt, sync::Arc, time::Duration};

use agentk_policy::describe;
use arc_swap::ArcSwap;
use http::Request;
use process::LogLimiter;
use proto::{Reason, ServiceName, agent_configuration::Scope, header};
use request_info::{DecodedPath, RequestInfo, RequestTarget, ResourceTarget, UnclearRequestError};
use tokio::{sync::watch, time::Instant};

use crate::{ServiceError, metrics::AgentMetrics};

/// The period in which refusals are logged once.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// The longest description of a request in the log, in characters.
const MAX_DESCRIPTION: usize = 300;

const NO_NAMESPACE: Scope = Scope { namespaces: Vec::new() };
const AWAITED: &str = "kas has not sent the configuration of this agent since agentk started, and --require-scope requires its scope";
const NOT_CONFIGURED: &str =
    "the configuration of this agent has no scope.namespaces, which --require-scope requires";

/// Checks requests for the Kubernetes API against the scope in force.
#[derive(Debug)]
pub struct ScopeEnforcer {
    /// The scope of `--namespaces`, which no configuration extends.
    local: Option<Scope>,
    /// Without a scope of the configuration, no namespace is in scope.
    required: bool,
    active: ArcSwap<ActiveScope>,
    changes: watch::Sender<()>,
    metrics: AgentMetrics,
    log_limit: LogLimiter<()>,
}

#[derive(Debug, Default)]
struct ActiveScope {
    /// The number of scopes before this one.
    version: u64,
    /// `None` allows all requests.
    scope: Option<Scope>,
    /// The scope of the configuration is required, and missing.
    missing: Option<MissingScope>,
}

/// The reason why there is no scope of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingScope {
    /// kas has not sent a configuration since the start of agentk.
    Awaited,
    /// The configuration has no scope.
    NotConfigured,
}

/// The reason why a scope does not contain a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutOfScope<'a> {
    /// The request is for another namespace.
    Namespace(&'a str),
    /// The request is for all namespaces, or for an object that is in none.
    ClusterScoped,
    /// The path has no resource, and is not one of the discovery.
    Path,
}

impl ScopeEnforcer {
    /// Returns an enforcer of the scope of `--namespaces`. `None` allows all requests until [`Self::set`] is called.
    pub fn new(local: Option<Scope>, metrics: AgentMetrics) -> Self {
        if let Some(scope) = &local {
            tracing::info!(namespaces = ?scope.namespaces, "scope of --namespaces in force");
        }
        Self {
            active: ArcSwap::from_pointee(ActiveScope { version: 0, scope: local.clone(), missing: None }),
            local,
            required: false,
            changes: watch::Sender::new(()),
            metrics,
            log_limit: LogLimiter::new(LOG_PERIOD),
        }
    }

    /// Returns an enforcer that requires a scope of the configuration. It refuses all requests but those that every scope
    /// contains, until [`Self::set`] is called with one.
    #[must_use]
    pub fn requiring_configured(self) -> Self {
        let (scope, missing) = (Some(NO_NAMESPACE), Some(MissingScope::Awaited));
        let active = ArcSwap::from_pointee(ActiveScope { version: 0, scope, missing });
        tracing::info!("no namespace is in scope until kas has sent the configuration of this agent");
        Self { required: true, active, ..self }
    }

    /// Replaces the scope of the configuration. `None` leaves that of `--namespaces`, or no namespace if a scope is required.
    /// Streams that the new scope does not contain end.
    pub fn set(&self, configured: Option<Scope>) {
        let active = self.active.load();
        let missing = (self.required && configured.is_none()).then_some(MissingScope::NotConfigured);
        let configured = configured.or_else(|| self.required.then_some(NO_NAMESPACE));
        let scope = intersection(self.local.as_ref(), configured);
        if active.scope == scope && active.missing == missing {
            return;
        }
        match (&scope, missing) {
            (_, Some(_)) => tracing::warn!("no namespace is in scope: {NOT_CONFIGURED}"),
            (Some(scope), None) => tracing::info!(namespaces = ?scope.namespaces, "scope in force"),
            (None, None) => tracing::info!("scope removed: requests may reach all namespaces"),
        }
        self.active.store(Arc::new(ActiveScope { version: active.version + 1, scope, missing }));
        self.changes.send_replace(());
    }

    /// Returns the scope in force. `None` allows all requests.
    pub fn in_force(&self) -> Option<Scope> {
        self.active.load().scope.clone()
    }

    /// Returns the reason why the scope of the configuration is missing, if it is required and missing.
    pub fn missing(&self) -> Option<MissingScope> {
        self.active.load().missing
    }

    /// Checks a request, and counts and logs a refusal. Returns the version of the scope that permits it.
    pub(crate) fn check<B>(&self, request: &Request<B>) -> Result<u64, ServiceError> {
        let active = self.active.load();
        let Some(scope) = &active.scope else { return Ok(active.version) };
        let Some(why) = refusal(scope, request) else { return Ok(active.version) };
        let why = active.missing.map_or(why, |missing| missing.to_string());
        self.metrics.count_out_of_scope();
        let described: String =
            describe(ServiceName::KUBERNETES, request).chars().take(MAX_DESCRIPTION).collect();
        if let Some(suppressed) = self.log_limit.admit((), Instant::now().into_std()) {
            let id = request.headers().get(header::REQUEST_ID).and_then(|id| id.to_str().ok());
            tracing::warn!(
                request = described,
                reason = why,
                request.id = id,
                suppressed,
                "request out of scope"
            );
        }
        let message = format!("the scope of this agent does not contain this: {described}: {why}");
        let reason = match active.missing {
            Some(MissingScope::Awaited) => Reason::ScopeAwaited,
            Some(MissingScope::NotConfigured) | None => Reason::RefusedByPolicy,
        };
        Err(ServiceError::new(reason, message))
    }

    /// Returns the version in force.
    pub(super) fn version(&self) -> u64 {
        self.active.load().version
    }

    /// Returns a receiver of each scope that comes into force after this call.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

impl fmt::Display for MissingScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Awaited => AWAITED,
            Self::NotConfigured => NOT_CONFIGURED,
        })
    }
}

/// Returns the scope that two scopes have in common. `None` is the whole cluster.
fn intersection(local: Option<&Scope>, configured: Option<Scope>) -> Option<Scope> {
    match (local, configured) {
        (Some(local), Some(mut both)) => {
            both.namespaces.retain(|name| local.namespaces.contains(name));
            Some(both)
        }
        (Some(local), None) => Some(local.clone()),
        (None, configured) => configured,
    }
}

/// Returns the reason why a scope does not contain a request, or `None` if it does.
fn refusal<B>(scope: &Scope, request: &Request<B>) -> Option<String> {
    let interpreted = || -> Result<_, UnclearRequestError> {
        let path = DecodedPath::new(request.uri())?;
        let info = RequestInfo::new(request.method(), &path, request.uri().query())?;
        Ok(out_of_scope(scope, &info).map(|why| message(scope, why)))
    };
    interpreted().unwrap_or_else(|unclear| Some(format!("it cannot be interpreted: {unclear}")))
}

fn out_of_scope<'a>(scope: &Scope, info: &RequestInfo<'a>) -> Option<OutOfScope<'a>> {
    let contains = |namespace: &str| scope.namespaces.iter().any(|each| each == namespace);
    match &info.target {
        RequestTarget::Path(path) => {
            (!matches!(info.verb, "get" | "head") || !is_discovery(path)).then_some(OutOfScope::Path)
        }
        RequestTarget::Resource(target) if info.verb == "create" && is_question_about_the_caller(target) => {
            None
        }
        RequestTarget::Resource(ResourceTarget { namespace: None, .. }) => Some(OutOfScope::ClusterScoped),
        RequestTarget::Resource(ResourceTarget { namespace: Some(namespace), .. })
            if !contains(namespace) =>
        {
            Some(OutOfScope::Namespace(namespace))
        }
        // A namespace is a cluster-scoped object, and clients read their own.
        RequestTarget::Resource(ResourceTarget { group: "", resource: "namespaces", .. })
            if !matches!(info.verb, "get" | "watch") =>
        {
            Some(OutOfScope::ClusterScoped)
        }
        RequestTarget::Resource(_) => None,
    }
}

/// Returns true if a path without a resource shows APIs, their schemas, the version or the health of the API server.
fn is_discovery(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    matches!(first, "" | "api" | "apis" | "openapi" | "version" | "healthz" | "livez" | "readyz")
}

/// Returns true for the requests of `kubectl auth can-i` and `kubectl auth whoami`, with which clients such as k9s and Headlamp
/// begin. The response says who the caller is, or which rights its identity has.
fn is_question_about_the_caller(target: &ResourceTarget<'_>) -> bool {
    let questions = [
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
        ("authentication.k8s.io", "selfsubjectreviews"),
    ];
    questions
        .iter()
        .any(|&(group, resource)| *target == ResourceTarget { group, resource, ..ResourceTarget::default() })
}

fn message(scope: &Scope, why: OutOfScope<'_>) -> String {
    let namespaces = match &*scope.namespaces {
        [only] => format!("the namespace {only}"),
        [first, second] => format!("the namespaces {first} and {second}"),
        [first, rest @ ..] => format!("the namespace {first} and {} others", rest.len()),
        [] => "no namespace".to_owned(),
    };
    match why {
        OutOfScope::Namespace(other) => format!("the scope is {namespaces}, without {other}"),
        OutOfScope::ClusterScoped => {
            format!("the scope is {namespaces}, without cluster-scoped objects and lists of all namespaces")
        }
        OutOfScope::Path => format!("the scope is {namespaces} and the discovery of APIs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(request: &str) -> bool {
        let (method, path) = request.split_once(' ').unwrap();
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let scope = Scope { namespaces: vec!["shop".to_owned(), "shop-test".to_owned()] };
        refusal(&scope, &request).is_none()
    }

    #[test]
    fn requests_for_namespaces_of_the_scope_discovery_and_questions_about_the_caller_pass() {
        for request in [
            "GET /api/v1/namespaces/shop/pods",
            "GET /api/v1/namespaces/shop/pods?watch=1",
            "GET /api/v1/watch/namespaces/shop/pods",
            "POST /api/v1/namespaces/shop-test/pods/p/exec?command=sh",
            "DELETE /apis/apps/v1/namespaces/shop/deployments",
            "GET /api/v1/namespaces/sh%6fp/services/s/proxy/x",
            "GET /api/v1/namespaces/shop",
            "GET /",
            "GET /api",
            "GET /api/v1",
            "GET /apis",
            "GET /apis/apps/v1",
            "HEAD /version",
            "GET /openapi/v3/apis/apps/v1?hash=1",
            "GET /readyz/etcd",
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            "POST /apis/authentication.k8s.io/v1/selfsubjectreviews?pretty=true",
        ] {
            assert!(allows(request), "{request}");
        }
    }

    #[test]
    fn requests_elsewhere_and_for_cluster_scoped_objects_are_refused() {
        for request in [
            "GET /api/v1/namespaces/other/pods",
            "GET /api/v1/namespaces/shop2/pods",
            "GET /api/v1/namespaces/SHOP/pods",
            "GET /api/v1/watch/namespaces/other/pods",
            "GET /api/v1/pods",
            "GET /api/v1/secrets?fieldSelector=metadata.namespace=shop",
            "GET /api/v1/watch/pods",
            "GET /api/v1/namespaces",
            "GET /api/v1/namespaces?fieldSelector=metadata.name=shop",
            "POST /api/v1/namespaces",
            "DELETE /api/v1/namespaces/shop",
            "PUT /api/v1/namespaces/shop/finalize",
            "PATCH /api/v1/namespaces/shop",
            "GET /api/v1/nodes/n",
            "GET /api/v1/nodes/n/proxy/logs",
            "POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
            "POST /apis/authorization.k8s.io/v1/namespaces/other/localsubjectaccessreviews",
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x/status",
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x",
            "POST /apis/authorization.k8s.io/v1/namespaces/other/selfsubjectaccessreviews",
            "PUT /apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x",
            "POST /apis/example.com/v1/selfsubjectaccessreviews",
            "POST /api/v1/selfsubjectreviews",
            "POST /apis/authentication.k8s.io/v1/tokenreviews",
            "GET /apis/rbac.authorization.k8s.io/v1/clusterroles",
            "GET /metrics",
            "GET /logs",
            "GET /debug/pprof",
            "POST /api",
            "GET /api/v1/namespaces/shop/../other/pods",
            "GET /api/v1/namespaces//pods",
            "GET /api/v1/namespaces/shop%2f..%2fother/pods",
            "BREW /api/v1/namespaces/shop/pods",
        ] {
            assert!(!allows(request), "{request}");
        }
    }

    #[test]
    fn scope_is_replaced_with_a_new_version() {
        let enforcer = ScopeEnforcer::new(None, AgentMetrics::default());
        let request = Request::get("/api/v1/pods").body(()).unwrap();
        assert_eq!(enforcer.check(&request).unwrap(), 0);
        enforcer.set(Some(Scope { namespaces: vec!["a".to_owned()] }));
        let error = enforcer.check(&request).unwrap_err();
        assert_eq!(error.reason, Reason::RefusedByPolicy);
        assert!(error.message.contains("the scope is the namespace a"), "{error}");
        enforcer.set(Some(Scope { namespaces: vec!["a".to_owned()] }));
        assert_eq!(enforcer.version(), 1, "the same scope is no new version");
        enforcer.set(None);
        assert_eq!(enforcer.check(&request).unwrap(), 2);
    }

    #[test]
    fn required_scope_refuses_until_it_arrives_and_while_the_configuration_has_none() {
        let scope =
            |names: &[&str]| Some(Scope { namespaces: names.iter().map(|&name| name.into()).collect() });
        for local in [None, scope(&["a", "b"])] {
            let enforcer = ScopeEnforcer::new(local, AgentMetrics::default()).requiring_configured();
            let check = |path: &str| {
                let checked = enforcer.check(&Request::get(path).body(()).unwrap());
                checked.map(drop).map_err(|error| error.reason)
            };
            let pods = "/api/v1/namespaces/a/pods";
            assert_eq!(enforcer.missing(), Some(MissingScope::Awaited));
            assert_eq!((check(pods), check("/apis")), (Err(Reason::ScopeAwaited), Ok(())));
            enforcer.set(None);
            assert_eq!(enforcer.missing(), Some(MissingScope::NotConfigured));
            assert_eq!((check(pods), check("/apis")), (Err(Reason::RefusedByPolicy), Ok(())));
            enforcer.set(scope(&["a", "c"]));
            assert_eq!((check(pods), enforcer.missing()), (Ok(()), None));
            assert_eq!(check("/api/v1/namespaces/b/pods"), Err(Reason::RefusedByPolicy));
            enforcer.set(None);
            assert_eq!(check(pods), Err(Reason::RefusedByPolicy));
            assert_eq!(enforcer.version(), 3);
        }
    }

    #[test]
    fn message_names_one_or_two_namespaces_and_counts_more() {
        for (namespaces, expected) in [
            (&["a"][..], "the scope is the namespace a, without x"),
            (&["a", "b"], "the scope is the namespaces a and b, without x"),
            (&["a", "b", "c"], "the scope is the namespace a and 2 others, without x"),
            (&[], "the scope is no namespace, without x"),
        ] {
            let scope = Scope { namespaces: namespaces.iter().map(|&name| name.into()).collect() };
            assert_eq!(message(&scope, OutOfScope::Namespace("x")), expected);
        }
    }

    #[test]
    fn configuration_does_not_extend_the_scope_of_the_flag() {
        let scope =
            |names: &[&str]| Some(Scope { namespaces: names.iter().map(|&name| name.into()).collect() });
        let enforcer = ScopeEnforcer::new(scope(&["a", "b"]), AgentMetrics::default());
        let allowed = || {
            let allows = |name: &&str| {
                let request = Request::get(format!("/api/v1/namespaces/{name}/pods")).body(()).unwrap();
                enforcer.check(&request).is_ok()
            };
            ["a", "b", "c"].into_iter().filter(allows).collect::<Vec<_>>()
        };
        assert_eq!(allowed(), ["a", "b"]);
        for (configured, expected) in [
            (scope(&["b", "c"]), &["b"][..]),
            (scope(&["c"]), &[]),
            (scope(&["a", "b", "c"]), &["a", "b"]),
            (None, &["a", "b"]),
        ] {
            enforcer.set(configured);
            assert_eq!(allowed(), expected);
            assert!(enforcer.check(&Request::get("/api/v1/nodes").body(()).unwrap()).is_err());
            enforcer.check(&Request::get("/apis").body(()).unwrap()).unwrap();
        }
    }
}

//! The request types that kas knows, and the services that it runs in each tunnel by itself.
//!
//! A request type that callers use is a [`RequestType`] of this folder, in [`REQUEST_TYPES`]. Requests of other types are
//! forwarded too, if the identity file allows it. A service that kas runs by itself is a field of [`TunnelServices`].

mod alerts;
mod audit;
pub(crate) mod configuration;
pub(crate) mod environments;
pub(crate) mod events;
pub(crate) mod gitops;
mod graph;
mod kubernetes;
mod lines;
pub(crate) mod notify;
mod pace;
mod prometheus;
mod provision;
mod shared;
pub(crate) mod views;

use std::{future::pending, sync::Arc};

use crate::{agent_memory::AgentMemory, events::Events, kill_switch::KillSwitch};
use access::{AgentIdentity, ErrorDialect, Identities, Target, UrlPathPrefix};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use gitlab::{GitLabAgents, GitLabClient, gitaly::GitalyClient};
use http::{Method, Uri};
use percent_encoding::percent_decode_str;
use prometheus_client::registry::Registry;
use proto::{Hello, ReplicaId, ServiceName};
use router::{RequestClass, RouteStore, redis::RedisStore};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

pub(crate) use self::lines::Lines;
use self::{
    alerts::Alerts,
    audit::Audit,
    configuration::{AgentConfigurationConfig, ConfigurationPusher, ConfigurationService},
    environments::{AgentEnvironments, EnvironmentsFeed},
    events::{AgentEvents, ConfigurationReporter, EventsFeed, EventsType},
    gitops::{GitopsConfig, GitopsFeed, GitopsService, GitopsType},
    graph::Graph,
    kubernetes::Kubernetes,
    notify::{NotifyFeed, NotifyService},
    prometheus::Prometheus,
    provision::Provision,
    views::{ViewsFeed, ViewsService},
};

/// The request types that kas knows.
static REQUEST_TYPES: [&dyn RequestType; 8] =
    [&Alerts, &Audit, &EventsType, &GitopsType, &Graph, &Kubernetes, &Prometheus, &Provision];

/// The part of kas in a request type that callers use. The defaults are those of types that kas does not know.
pub(crate) trait RequestType: Sync {
    /// Returns the name, which is also the value of the label `service` of metrics.
    fn name(&self) -> &'static str;

    /// Returns whether this is the type of a service.
    fn serves(&self, service: &ServiceName) -> bool {
        service.as_str() == self.name()
    }

    /// Returns the dialect of errors.
    fn dialect(&self) -> ErrorDialect {
        ErrorDialect::Plain
    }

    /// Returns whether the response is a stream that stays open. The path has no query.
    fn is_streaming(&self, _path: &str, query: &str) -> bool {
        asks_for_stream(query)
    }

    /// Returns whether the response is one of an application in the cluster, to which the service only forwards.
    fn is_application(&self, _path: &str) -> bool {
        false
    }

    /// Interprets a request for the audit log. `uri` is the path with the query as the service receives it.
    fn operation(&self, method: &Method, _uri: &Uri) -> Operation {
        Operation::of_method(method)
    }
}

/// The operation of a request in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// For Kubernetes the verb as in RBAC; otherwise the method in lower case.
    pub(crate) verb: String,
    /// The request may change something.
    pub(crate) changes: bool,
    /// The request reads secrets or the audit log of the cluster, or creates a token.
    pub(crate) reads_secret: bool,
    /// Servers could interpret the path differently, so that it may be one of secrets.
    pub(crate) unclear_path: bool,
}

/// A request type that kas does not know.
struct Other;

impl RequestType for Other {
    fn name(&self) -> &'static str {
        "other"
    }
}

impl Operation {
    /// Interprets a request by its method alone.
    fn of_method(method: &Method) -> Self {
        Self {
            verb: method.as_str().to_ascii_lowercase(),
            changes: !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS),
            reads_secret: false,
            unclear_path: false,
        }
    }
}

/// Returns the type of a service.
pub(crate) fn request_type(service: &ServiceName) -> &'static dyn RequestType {
    REQUEST_TYPES.into_iter().find(|known| known.serves(service)).unwrap_or(&Other)
}

/// Returns the names of all types, which are the values of the label `service`. Agents may announce any name, and the number of
/// series must not grow with them.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    REQUEST_TYPES.into_iter().chain([&Other as &dyn RequestType]).map(RequestType::name)
}

/// Returns the dialect of errors for a path, which kas needs before the path is parsed.
pub fn dialect(path: &str, prefix: &UrlPathPrefix) -> ErrorDialect {
    let service = Target::service_of(path, prefix).and_then(|service| service.parse().ok());
    service.map_or(ErrorDialect::Plain, |service| request_type(&service).dialect())
}

/// Returns whether the response to a request is one of an application in the cluster. The path is that which the service receives.
pub(crate) fn is_application(service: &ServiceName, path: &str) -> bool {
    request_type(service).is_application(path)
}

/// Returns whether the response to a request stays open.
pub fn class(target: &Target<'_>, upgrading: bool) -> RequestClass {
    let (path, query) = target.path.split_once('?').unwrap_or((target.path, ""));
    if upgrading || request_type(&target.service).is_streaming(path, query) {
        RequestClass::Streaming
    } else {
        RequestClass::Short
    }
}

/// Returns whether a parameter of the query makes the response of an API server a stream. The server treats every value except
/// `false` and `0` as true, even a missing one (`Convert_Slice_string_To_bool` of apimachinery).
fn asks_for_stream(query: &str) -> bool {
    query.split('&').any(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = percent_decode_str(name);
        (name.clone().eq(*b"watch") || name.eq(*b"follow"))
            && value != "0"
            && !value.eq_ignore_ascii_case("false")
    })
}

/// The services that kas runs in each tunnel by itself. Clones share their state.
#[derive(Clone, Debug)]
pub struct TunnelServices {
    /// Sends each agent its configuration.
    pub configuration: ConfigurationService,
    /// Sends each agent the manifests of its projects.
    pub gitops: GitopsService,
    /// Sends each agent the events of projects.
    pub notify: NotifyService,
    /// Keeps the last values of the views of each agent.
    pub views: ViewsService,
    /// The environments that agents name.
    pub environments: AgentEnvironments,
    /// Follows the events of each agent.
    pub events: AgentEvents,
}

/// The parts of a replica from which the services are built.
#[derive(Debug)]
pub(crate) struct ServiceContext<'a> {
    pub(crate) replica: ReplicaId,
    pub(crate) identities: &'a Identities,
    /// The client of a GitLab, and its agents.
    pub(crate) gitlab: Option<&'a (GitLabClient, GitLabAgents)>,
    pub(crate) gitaly: &'a GitalyClient,
    pub(crate) configuration: &'a AgentConfigurationConfig,
    pub(crate) gitops: &'a GitopsConfig,
    pub(crate) kill_switch: &'a Arc<KillSwitch>,
    pub(crate) events: &'a Events,
    /// The records that replicas share.
    pub(crate) store: &'a Arc<dyn RouteStore>,
    /// The store that replicas share, if there are several.
    pub(crate) redis: Option<&'a RedisStore>,
    pub(crate) registry: &'a mut Registry,
}

/// The services of one tunnel: those that agentk accepts, and those that follow its configuration.
#[derive(Debug)]
pub(crate) struct TunnelSession {
    configuration: ConfigurationPusher,
    gitops: Option<GitopsFeed>,
    notify: Option<NotifyFeed>,
    views: Option<ViewsFeed>,
    events: Option<EventsFeed>,
    environments: EnvironmentsFeed,
    reporter: ConfigurationReporter,
}

impl TunnelServices {
    /// Builds the services of a replica.
    pub(crate) fn new(mut context: ServiceContext<'_>) -> Self {
        let gitops = GitopsService::of_replica(&mut context);
        let notify = NotifyService::of_replica(&mut context, gitops.clone());
        let views = ViewsService::of_replica(&context);
        let environments = AgentEnvironments::new(context.redis.cloned());
        let events = AgentEvents::new(context.events.clone(), Arc::clone(context.kill_switch));
        Self {
            configuration: ConfigurationService::of_replica(context),
            gitops,
            notify,
            views,
            environments,
            events,
        }
    }

    /// Prepares the services of a new tunnel. Boxed, because a future has room for each variable that the session has passed through.
    pub(crate) fn attach(
        &self,
        agent: &AgentIdentity,
        token: &SecretString,
        hello: &Hello,
        memory: &AgentMemory,
    ) -> Box<TunnelSession> {
        let configuration = self.configuration.subscribe(agent, hello);
        let gitops = self.gitops.attach(agent, token, hello, configuration.state(), memory);
        let notify = self.notify.attach(agent, token, hello, configuration.state(), memory);
        let views = self.views.attach(agent, hello, configuration.state(), memory);
        let events = self.events.attach(agent, hello, configuration.state(), memory);
        let environments = self.environments.attach(agent, configuration.state());
        let reporter = self.events.reporter(agent, configuration.state());
        Box::new(TunnelSession { configuration, gitops, notify, views, events, environments, reporter })
    }
}

impl TunnelSession {
    /// Does what must be done before the first request of a caller. This takes a second at most.
    pub(crate) async fn prepare(&mut self, tunnel: &Tunnel) {
        self.configuration.send_current(tunnel).await;
    }

    /// Serves the tunnel. The future never completes.
    /// `draining` is cancelled when the tunnel should not be used any more: long streams of kas itself end then.
    ///
    /// Each service has its own memory and wake-ups, so that those that agentk does not accept cost nothing.
    pub(crate) async fn run(&mut self, tunnel: &Tunnel, draining: &CancellationToken) {
        let Self { configuration, gitops, notify, views, events, environments, reporter } = self;
        let mut services = FuturesUnordered::<BoxFuture<'_, ()>>::new();
        services.push(Box::pin(environments.run()));
        services.push(Box::pin(reporter.run()));
        services.extend(gitops.iter().map(|feed| feed.run(tunnel).boxed()));
        services.extend(notify.iter().map(|feed| feed.run(tunnel).boxed()));
        services.extend(views.iter().map(|feed| feed.run(tunnel).boxed()));
        services.extend(events.iter().map(|feed| feed.run(tunnel).boxed()));
        let until_drain = draining.run_until_cancelled(services.collect::<()>());
        tokio::join!(configuration.run(tunnel).boxed(), until_drain);
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use http::uri::PathAndQuery;

    use super::*;

    #[test]
    fn long_requests_are_recognized() {
        for (path, expected) in [
            ("/k8s-proxy/api/v1/pods?watch=true&x=1", RequestClass::Streaming),
            ("/k8s-proxy/api/v1/pods?x=1&watch=1", RequestClass::Streaming),
            ("/k8s-proxy/api/v1/namespaces/a/pods/b/log?follow=true", RequestClass::Streaming),
            ("/agents/a/prometheus/api/v1/notifications/live", RequestClass::Streaming),
            ("/agents/a/prometheus/api/v1/notifications", RequestClass::Short),
            ("/agents/a/graph/v1/watch?kind=Pod", RequestClass::Streaming),
            ("/agents/a/graph/v1/tree", RequestClass::Short),
            ("/agents/a/audit/v1/events?follow=true", RequestClass::Streaming),
            ("/agents/a/audit", RequestClass::Short),
            ("/k8s-proxy/api/v1/pods?watch", RequestClass::Streaming),
            ("/k8s-proxy/api/v1/pods?watch=yes", RequestClass::Streaming),
            ("/k8s-proxy/api/v1/pods?w%61tch=1", RequestClass::Streaming),
            ("/k8s-proxy/api/v1/pods?watch=false", RequestClass::Short),
            ("/k8s-proxy/api/v1/pods?watch=0&x=1", RequestClass::Short),
            ("/k8s-proxy/api/v1/pods?watched=1", RequestClass::Short),
            ("/k8s-proxy/api/v1/pods", RequestClass::Short),
        ] {
            let path: PathAndQuery = path.parse().unwrap();
            let target = Target::parse(&path, &UrlPathPrefix::default()).unwrap();
            assert_eq!(class(&target, false), expected, "{path}");
        }
    }

    #[test]
    fn dialect_follows_the_service() {
        let of_path = |path: &str| dialect(path, &UrlPathPrefix::default());
        assert_eq!(of_path("/k8s-proxy/api"), ErrorDialect::Kubernetes);
        assert_eq!(of_path("/agents/a/kubernetes/api"), ErrorDialect::Kubernetes);
        assert_eq!(of_path("/agents/a/prometheus.thanos/api"), ErrorDialect::Prometheus);
        assert_eq!(of_path("/agents/a/prometheus"), ErrorDialect::Prometheus);
        for service in ["resources", "prometheusx", "kubernetesx", "kubernetes.x"] {
            assert_eq!(of_path(&format!("/agents/a/{service}/x")), ErrorDialect::Plain, "{service}");
        }
        assert_eq!(of_path("/"), ErrorDialect::Plain);
        for path in ["/version", "/api/v1/namespaces", "/apis", "/readyz"] {
            assert_eq!(of_path(path), ErrorDialect::Kubernetes, "{path}");
        }
    }

    /// The verb of a request, and what it does.
    fn operation(method: &str, service: &str, uri: &str) -> String {
        let (method, service) = (method.parse().unwrap(), service.parse().unwrap());
        let Operation { verb, changes, reads_secret, unclear_path } =
            request_type(&service).operation(&method, &uri.parse().unwrap());
        let facts = [(changes, "Change"), (reads_secret, "SecretRead"), (unclear_path, "UnclearPath")];
        let facts: Vec<_> = facts.into_iter().filter_map(|(is, fact)| is.then_some(fact)).collect();
        format!("{verb} {}", facts.join(",")).trim().to_owned()
    }

    #[test]
    fn operation_follows_from_method_service_and_path() {
        for (method, service, uri, expected) in [
            ("GET", "kubernetes", "/api/v1/pods", "list"),
            ("HEAD", "kubernetes", "/version", "head"),
            ("OPTIONS", "kubernetes", "/version", "options"),
            ("POST", "kubernetes", "/api/v1/namespaces/a/pods", "create Change"),
            ("DELETE", "kubernetes", "/api/v1/namespaces/a/pods", "deletecollection Change"),
            ("GET", "kubernetes", "/api/v1/namespaces/a/secrets/b", "get SecretRead"),
            ("HEAD", "kubernetes", "/api/v1/namespaces/a/secrets/b", "get SecretRead"),
            ("GET", "kubernetes", "/api/v1/secrets", "list SecretRead"),
            ("GET", "kubernetes", "/api/v1/secrets?watch=1", "watch SecretRead"),
            ("GET", "kubernetes", "/api/v1/watch/secrets", "watch SecretRead"),
            ("GET", "kubernetes", "/api/v1/secret%73", "list SecretRead"),
            ("GET", "kubernetes", "/apis/example.com/v1/secrets", "list"),
            ("POST", "kubernetes", "/api/v1/namespaces/a/secrets", "create Change"),
            (
                "POST",
                "kubernetes",
                "/api/v1/namespaces/a/serviceaccounts/b/token",
                "create Change,SecretRead",
            ),
            ("GET", "kubernetes", "/api/v1//secrets", "get UnclearPath"),
            ("GET", "kubernetes", "/api/v1/x/../secrets", "get UnclearPath"),
            ("BREW", "kubernetes", "/api/v1/pods", "brew Change"),
            ("OPTIONS", "kubernetes", "/api/v1/secrets", "options"),
            ("PUT", "kubernetes", "/api/v1//secrets/a", "put Change"),
            ("GET", "prometheus", "/api/v1/query?query=up", "get"),
            ("POST", "prometheus", "/api/v1/query", "post"),
            ("POST", "prometheus.thanos", "/api/v1/query_range", "post"),
            ("POST", "prometheus", "/api/v1/admin/tsdb/delete_series", "post Change"),
            ("PUT", "prometheus", "/api/v1/query", "put Change"),
            ("POST", "other", "/api/v1/query", "post Change"),
            ("GET", "other", "/api/v1/secrets", "get"),
            ("GET", "audit", "/v1/events", "get SecretRead"),
        ] {
            assert_eq!(operation(method, service, uri), expected, "{method} {service} {uri}");
        }
    }
}

//! The features of kas, and all that they add to core: types of requests, what they do with requests and in tunnels, routes of the internal
//! API, answers to other replicas, and their work in the background.
//!
//! Requests of types that are not in [`request_types`] are forwarded too, if the identity file allows it.

#[cfg(test)]
mod openapi;

use std::sync::{Arc, OnceLock};

use access::Identities;
use axum::Router;
use futures_util::future::BoxFuture;
use gitops_wire::{CommitStatusApi, ProjectSource};
use kas_events::{
    EventRequests, Events,
    agents::{AgentEvents, ConfigurationReports},
};
use kas_gitlab::{
    GitLabAgents, GitLabClient, GitLabCommitStatuses, GitLabProjects, Usage, UsageReports,
    gitaly::GitalyClient,
};
use kas_gitops::{GitopsConfig, GitopsContext, GitopsService};
use kas_graph::{GraphRequests, views::ViewsService};
use kas_notify::NotifyService;
use kas_promql::Prometheus;
use kas_web::{Recent, RecentAnswers};
use prometheus_client::registry::Registry;
use proto::{ReplicaId, ServiceName};
use store::{GitPush, Store, redis::RedisStore};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use kas_cluster_audit::{AccessRing, Audit, ClusterAudit, ClusterAuditMetrics};
use kas_core::{
    api::{ApiContext, ApiRoutes},
    attachments::TunnelFeature,
    audit::AuditLog,
    configuration::AgentConfigurationConfig,
    forward::Forwarder,
    kill_switch::KillSwitch,
    peers::PeerHooks,
    request_hooks::{RequestHooks, RequestObserver},
    request_types::{Named, RequestTypes},
};
use kas_environments::{AgentEnvironments, ManagedResourcesConfig, Provisioner, api::EnvironmentsApi};

/// Returns the request types that kas knows.
pub fn request_types() -> RequestTypes {
    RequestTypes::with(vec![
        Box::new(Prometheus::default()),
        Box::new(Named(ServiceName::ALERTS)),
        Box::new(Audit),
        Box::new(Named(ServiceName::EVENTS)),
        Box::new(Named(ServiceName::GITOPS)),
        Box::new(GraphRequests),
        Box::new(Named(ServiceName::PROVISION)),
    ])
}

/// The features that have a state. Clones share it.
#[derive(Clone, Debug)]
pub struct Features {
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
    /// The recent requests and lines of the audit log, if kas serves the page.
    pub(crate) recent: Option<Arc<Recent>>,
    /// The recent requests to clusters, for their audit logs.
    accesses: Arc<AccessRing>,
    replica: ReplicaId,
    store: Arc<dyn Store>,
    identities: Identities,
    /// The agents and the requests, for GitLab.
    usage: Usage,
}

/// The parts of a replica from which features are built.
#[derive(Debug)]
pub(crate) struct FeatureContext<'a> {
    pub(crate) replica: ReplicaId,
    pub(crate) identities: &'a Identities,
    /// The client of a GitLab, and its agents.
    pub(crate) gitlab: Option<&'a (GitLabClient, GitLabAgents)>,
    pub(crate) gitaly: &'a GitalyClient,
    /// The agents and the requests, for GitLab.
    pub(crate) usage: &'a Usage,
    pub(crate) configuration: &'a AgentConfigurationConfig,
    pub(crate) gitops: &'a GitopsConfig,
    pub(crate) events: &'a Events,
    /// The records that replicas share.
    pub(crate) store: &'a Arc<dyn Store>,
    /// The store that replicas share, if there are several.
    pub(crate) redis: Option<&'a RedisStore>,
    /// kas serves the web page.
    pub(crate) has_page: bool,
    pub(crate) registry: &'a mut Registry,
}

/// The parts of a replica from which hooks of requests are built.
#[derive(Debug)]
pub(crate) struct RequestHookContext<'a> {
    pub(crate) forwarder: &'a Forwarder,
    pub(crate) kill_switch: &'a Arc<KillSwitch>,
    /// The audit log, once it is open.
    pub(crate) audit: &'a Arc<OnceLock<AuditLog>>,
    /// Cancelled when the replica stops serving callers.
    pub(crate) draining: &'a CancellationToken,
    pub(crate) managed_resources: &'a ManagedResourcesConfig,
    pub(crate) registry: &'a mut Registry,
}

impl Features {
    /// Builds the features of a replica.
    pub(crate) fn new(context: FeatureContext<'_>) -> Self {
        let gitaly = context.gitaly;
        let projects = context.gitlab.cloned().map(|(client, agents)| {
            Arc::new(GitLabProjects::new(client, agents, gitaly.clone())) as Arc<dyn ProjectSource>
        });
        let statuses = context.gitlab.and_then(|(client, _)| GitLabCommitStatuses::new(client));
        let gitops = GitopsService::new(
            GitopsContext {
                identities: context.identities.clone(),
                projects,
                statuses: statuses.map(|statuses| Arc::new(statuses) as Arc<dyn CommitStatusApi>),
                default_repository: context.configuration.settings.clone(),
                redis: context.redis.cloned(),
            },
            context.gitops,
            context.registry,
        );
        let store = Arc::clone(context.store);
        Self {
            notify: NotifyService::new(store, Arc::new(gitops.clone()), context.registry),
            gitops,
            views: ViewsService::new(context.replica, context.redis.cloned()),
            environments: AgentEnvironments::new(context.redis.cloned()),
            events: AgentEvents::new(context.events.clone()),
            recent: context.has_page.then(|| Arc::new(Recent::new(context.replica))),
            accesses: Arc::new(AccessRing::new(context.replica)),
            replica: context.replica,
            store: Arc::clone(context.store),
            identities: context.identities.clone(),
            usage: context.usage.clone(),
        }
    }

    /// Returns the hooks of requests, in the order in which they are called.
    pub(crate) fn request_hooks(&self, context: RequestHookContext<'_>) -> Vec<Box<dyn RequestHooks>> {
        let RequestHookContext { forwarder, kill_switch, audit, draining, managed_resources, registry } =
            context;
        vec![
            Box::new(EventRequests {
                events: self.events.log().clone(),
                replica: self.replica,
                draining: draining.clone(),
            }),
            Box::new(Provisioner::new(
                managed_resources.clone(),
                forwarder.clone(),
                Arc::clone(kill_switch),
                Arc::clone(audit),
                registry,
            )),
            Box::new(ClusterAudit {
                accesses: Arc::clone(&self.accesses),
                peers: forwarder.peers.clone(),
                store: Arc::clone(&self.store),
                metrics: ClusterAuditMetrics::register(registry),
            }),
        ]
    }

    /// Returns the features that see each request.
    pub(crate) fn request_observers(&self) -> Vec<Arc<dyn RequestObserver>> {
        self.recent.iter().map(|recent| Arc::clone(recent) as Arc<dyn RequestObserver>).collect()
    }

    /// Returns the features that answer other replicas.
    pub(crate) fn peer_hooks(&self) -> Vec<Arc<dyn PeerHooks>> {
        vec![Arc::clone(&self.accesses) as Arc<dyn PeerHooks>, Arc::new(RecentAnswers(self.recent.clone()))]
    }

    /// Returns the routes of the listener of probes and metrics. `draining` is cancelled when the replica stops.
    pub(crate) fn admin_routes(&self, draining: &CancellationToken) -> Router {
        kas_events::admin::routes(self.events.log().clone(), self.replica, draining.clone())
    }

    /// Returns the features that work in tunnels.
    pub(crate) fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        vec![
            Box::new(self.gitops.clone()),
            Box::new(self.notify.clone()),
            Box::new(self.views.clone()),
            Box::new(self.environments.clone()),
            Box::new(self.events.clone()),
            Box::new(ConfigurationReports(self.events.clone())),
            Box::new(UsageReports { identities: self.identities.clone(), usage: self.usage.clone() }),
        ]
    }

    /// Returns the routes of the internal API.
    pub fn api_routes(
        &self,
        context: &ApiContext,
        environments: EnvironmentsApi,
        gitaly: GitalyClient,
    ) -> ApiRoutes {
        let http = kas_environments::api::routes(context.clone(), environments)
            .merge(kas_graph::views::api::routes(context.clone(), self.views.clone()))
            .merge(kas_events::api::routes(context.clone(), self.events.log().clone()))
            .merge(kas_notify::api::routes(self.notify.clone()));
        let rpcs = kas_gitlab::rpcs::routes(context.clone(), gitaly)
            .merge(kas_graph::views::rpc::routes(self.views.clone()))
            .merge(kas_notify::git_push::routes(self.notify.clone()));
        ApiRoutes { http, rpcs }
    }

    /// Returns the work that is of no single tunnel. The futures never complete. `pushes` subscribes to the pushes that replicas announce.
    pub(crate) fn background_tasks(
        &self,
        pushes: impl Fn() -> broadcast::Receiver<GitPush>,
    ) -> [BoxFuture<'static, ()>; 3] {
        let (gitops, statuses, notify) = (self.gitops.clone(), self.gitops.clone(), self.notify.clone());
        let (followed, recorded) = (pushes(), pushes());
        [
            Box::pin(async move { gitops.follow_pushes(followed).await }),
            Box::pin(async move { notify.follow_pushes(recorded).await }),
            Box::pin(async move { statuses.report_statuses().await }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use access::{ErrorDialect, Target, UrlPathPrefix};
    use http::uri::PathAndQuery;
    use router::RequestClass;

    use super::*;
    use kas_core::request_types::RequestOperation;

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
            assert_eq!(request_types().class(&target, false), expected, "{path}");
        }
    }

    #[test]
    fn dialect_follows_the_service() {
        let of_path = |path: &str| request_types().dialect(path, &UrlPathPrefix::default());
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
        let RequestOperation { verb, changes, reads_secret, unclear_path } =
            request_types().of(&service).operation(&method, &uri.parse().unwrap());
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

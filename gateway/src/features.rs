//! The list of the features of kas.
//!
//! A new feature is a line in [`features`], and, if it has a crate, one in the list of `cli::serve`.

#[cfg(test)]
mod openapi;

use std::sync::Arc;

use access::Identities;
use environments_wire::EnvironmentSources;
use gitops_wire::{CommitStatusApi, MergeRequestApi, ProjectSource};
use prometheus_client::registry::Registry;
use proto::{ReplicaId, ServiceName};
use store::{Store, redis::RedisStore};

use crate::config::AgentConfig;
use kas_cluster_audit::ClusterAuditFeature;
use kas_core::feature::{Features, KasFeature, NamedFeature};
use kas_environments::{AgentEnvironments, Deployments, EnvironmentsFeature};
use kas_events::{Events, EventsFeature};
use kas_fleet::FleetFeature;
use kas_gitlab::{
    GitLabAgents, GitLabClient, GitLabCommitStatuses, GitLabFeature, GitLabMergeRequests, GitLabProjects,
    HeldAgents, Usage, gitaly::GitalyClient,
};
use kas_gitops::{GitopsContext, GitopsService};
use kas_graph::GraphFeature;
use kas_notify::NotifyService;
use kas_promql::PromqlFeature;
use kas_web::{Recent, WebFeature};

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
    pub(crate) config: &'a AgentConfig,
    /// The agents of GitLab with tunnels to this replica.
    pub(crate) held: Option<HeldAgents>,
    pub(crate) events: &'a Events,
    /// The environments of all sources.
    pub(crate) environments: EnvironmentSources,
    /// The environments that agents name.
    pub(crate) named_environments: AgentEnvironments,
    pub(crate) deployments: &'a Deployments,
    /// The recent requests and lines of the audit log, if kas serves the page.
    pub(crate) recent: Option<&'a Arc<Recent>>,
    /// The records that replicas share.
    pub(crate) store: &'a Arc<dyn Store>,
    /// The store that replicas share, if there are several.
    pub(crate) redis: Option<&'a RedisStore>,
    /// Features beside those of the list.
    pub(crate) additional: Vec<Box<dyn KasFeature>>,
    pub(crate) registry: &'a mut Registry,
}

/// Builds the features of a replica. Their hooks are called in this order. GitOps is returned once more, for the callers of GitLab.
pub(crate) fn features(mut context: FeatureContext<'_>) -> (Features, GitopsService) {
    let gitops = gitops(&mut context);
    let FeatureContext { replica, store, config, registry, .. } = context;
    let (identities, redis) = (context.identities.clone(), context.redis.cloned());
    let (usage, gitaly) = (context.usage.clone(), context.gitaly.clone());
    let mut features: Vec<Box<dyn KasFeature>> = vec![
        Box::new(EventsFeature::new(context.events.clone(), replica, redis.clone())),
        Box::new(EnvironmentsFeature {
            replica,
            managed_resources: config.managed_resources.clone(),
            named: context.named_environments,
            sources: context.environments,
            deployments: context.deployments.clone(),
        }),
        Box::new(ClusterAuditFeature::new(replica, Arc::new(context.deployments.clone()))),
        Box::new(gitops.clone()),
        Box::new(NotifyService::new(Arc::clone(store), Arc::new(gitops.clone()), registry)),
        Box::new(GraphFeature::new(replica, redis)),
        Box::new(FleetFeature::new(replica)),
        Box::new(GitLabFeature { identities, usage, gitaly, held: context.held }),
        Box::new(PromqlFeature),
        Box::new(NamedFeature(ServiceName::ALERTS)),
        Box::new(WebFeature(context.recent.cloned())),
    ];
    features.extend(context.additional);
    (Features::new(features), gitops)
}

fn gitops(context: &mut FeatureContext<'_>) -> GitopsService {
    let projects = context.gitlab.cloned().map(|(client, agents)| {
        Arc::new(GitLabProjects::new(client, agents, context.gitaly.clone())) as Arc<dyn ProjectSource>
    });
    let statuses = context.gitlab.and_then(|(client, _)| GitLabCommitStatuses::new(client));
    let merge_requests = context.gitlab.and_then(|(client, _)| GitLabMergeRequests::new(client));
    let parts = GitopsContext {
        identities: context.identities.clone(),
        projects,
        statuses: statuses.map(|statuses| Arc::new(statuses) as Arc<dyn CommitStatusApi>),
        merge_requests: merge_requests.map(|api| Arc::new(api) as Arc<dyn MergeRequestApi>),
        default_repository: context.config.configuration.settings.clone(),
        store: Arc::clone(context.store),
        replica: context.replica,
        redis: context.redis.cloned(),
    };
    GitopsService::new(parts, &context.config.gitops, context.registry)
}

#[cfg(test)]
mod tests {
    use access::{ErrorDialect, Target, UrlPathPrefix};
    use http::uri::PathAndQuery;
    use router::RequestClass;

    use crate::test_support::request_types;
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
            ("/k8s-proxy/api/v1/watch/pods", RequestClass::Streaming),
            ("/k8s-proxy/apis/apps/v1/watch/deployments", RequestClass::Streaming),
            ("/k8s-proxy/api/v1/w%61tch/pods", RequestClass::Streaming),
            ("/k8s-proxy/api/v1/namespaces/watch/pods", RequestClass::Short),
            ("/k8s-proxy/api/v1/namespaces/a/services/b/proxy/watch/", RequestClass::Short),
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
    fn is_watch_follows_from_service_and_path() {
        for (service, uri, expected) in [
            ("kubernetes", "/api/v1/pods?watch=1", true),
            ("kubernetes", "/api/v1/watch/pods", true),
            ("kubernetes", "/apis/apps/v1/watch/deployments", true),
            ("kubernetes", "/api/v1/w%61tch/pods", true),
            ("kubernetes", "/api/v1/pods?watch=0", false),
            ("kubernetes", "/api/v1/namespaces/a/pods/b/log?follow=true", false),
            ("kubernetes", "/api/v1/namespaces/a/pods/b/log?follow=true&watch=1", false),
            ("kubernetes", "/api/v1/namespaces/a/pods/b/exec?command=sh&watch=1", false),
            ("kubernetes", "/api/v1/namespaces/a/services/b/proxy/watch/", false),
            ("kubernetes", "/api/v1/namespaces/a/services/b/proxy/?watch=1", false),
            ("graph", "/v1/watch?kind=Pod", true),
            ("graph", "/v1/tree", false),
            ("prometheus", "/api/v1/notifications/live", true),
            ("prometheus.thanos", "/api/v1/notifications/live", true),
            ("prometheus", "/api/v1/query?query=up&watch=1", false),
            ("other", "/?watch=1", false),
        ] {
            let (types, service) = (request_types(), service.parse().unwrap());
            let is_watch = types.of(&service).is_watch(&http::Method::GET, &uri.parse().unwrap());
            assert_eq!(is_watch, expected, "{service} {uri}");
        }
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

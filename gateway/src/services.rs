//! The request types that kas knows, and the services that it runs in each tunnel by itself.
//!
//! A request type that callers use is a [`RequestType`](crate::request_types::RequestType), in [`request_types`]. Requests of other types
//! are forwarded too, if the identity file allows it. A service that kas runs by itself is a field of [`TunnelServices`].

mod audit;
pub(crate) mod configuration;
pub(crate) mod environments;
pub(crate) mod events;
pub(crate) mod gitops;
mod graph;
mod lines;
pub(crate) mod notify;
mod pace;
mod shared;
pub(crate) mod views;

use std::{future::pending, sync::Arc};

use crate::{
    agent_memory::AgentMemory,
    events::Events,
    kill_switch::KillSwitch,
    request_types::{Named, RequestTypes},
};
use access::{AgentIdentity, Identities};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use gitlab::{GitLabAgents, GitLabClient, gitaly::GitalyClient};
use prometheus_client::registry::Registry;
use proto::{Hello, ReplicaId, ServiceName};
use router::{RouteStore, redis::RedisStore};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

pub(crate) use self::lines::Lines;
use self::{
    audit::Audit,
    configuration::{AgentConfigurationConfig, ConfigurationPusher, ConfigurationService},
    environments::{AgentEnvironments, EnvironmentsFeed},
    events::{AgentEvents, ConfigurationReporter, EventsFeed},
    gitops::{GitopsConfig, GitopsFeed, GitopsService},
    graph::Graph,
    notify::{NotifyFeed, NotifyService},
    views::{ViewsFeed, ViewsService},
};

/// Returns the request types that kas knows.
pub fn request_types() -> RequestTypes {
    RequestTypes::with(vec![
        Box::new(Named(ServiceName::ALERTS)),
        Box::new(Audit),
        Box::new(Named(ServiceName::EVENTS)),
        Box::new(Named(ServiceName::GITOPS)),
        Box::new(Graph),
        Box::new(Named(ServiceName::PROVISION)),
    ])
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
    use access::{ErrorDialect, Target, UrlPathPrefix};
    use http::uri::PathAndQuery;
    use router::RequestClass;

    use super::*;
    use crate::request_types::Operation;

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
        let Operation { verb, changes, reads_secret, unclear_path } =
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

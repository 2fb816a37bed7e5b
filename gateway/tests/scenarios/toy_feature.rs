//! A feature that is none of the program: all that it adds to kas comes through `KasFeature`.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use access::RequestError;
use agentk_core::Services;
use axum::{Router, routing::get};
use futures_util::future::{BoxFuture, pending, ready};
use http::{HeaderValue, Method, Response, header::ETAG};
use kas_core::{
    agents::AgentServer,
    api::{ApiContext, ApiRoutes},
    attachments::{Attachment, OpeningTunnel, TunnelFeature},
    feature::{KasFeature, RequestHookContext},
    peers::PeerHooks,
    proxy::ProxyServer,
    request_hooks::{AuthorizedRequest, ObservedRequest, RequestHooks, RequestObserver},
    request_types::{Named, RequestType},
};
use kas_testing::{
    internal_api,
    world::{World, text},
};
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;
use tunnel::{Body, Tunnel};

use crate::observability::send;

/// The name of the service, and of its routes.
const TOY: &str = "toy";

/// The feature, which counts what kas asks it to do.
#[derive(Clone, Debug, Default)]
struct Toy(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    tunnels: AtomicUsize,
    results: AtomicUsize,
    audit_lines: AtomicUsize,
    tasks: AtomicUsize,
}

/// Marks the responses of the service.
#[derive(Debug)]
struct Mark(Counter);

impl KasFeature for Toy {
    fn request_types(&self) -> Vec<Box<dyn RequestType>> {
        vec![Box::new(Named(TOY))]
    }

    fn request_hooks(&self, context: &mut RequestHookContext<'_>) -> Vec<Box<dyn RequestHooks>> {
        let marked = Counter::default();
        context.registry.register("kas_toy_marked", "Responses with a mark", marked.clone());
        vec![Box::new(Mark(marked))]
    }

    fn request_observers(&self) -> Vec<Arc<dyn RequestObserver>> {
        vec![Arc::new(self.clone())]
    }

    fn peer_hooks(&self) -> Vec<Arc<dyn PeerHooks>> {
        vec![Arc::new(self.clone())]
    }

    fn tunnel_features(&self) -> Vec<Box<dyn TunnelFeature>> {
        vec![Box::new(self.clone())]
    }

    fn admin_routes(&self, _: &CancellationToken) -> Router {
        Router::new().route("/toy", get(async || TOY))
    }

    fn api_routes(&self, _: &ApiContext, _: &ProxyServer) -> ApiRoutes {
        ApiRoutes { http: Router::new().route("/api/v1/toy", get(async || TOY)), ..ApiRoutes::default() }
    }

    fn background_tasks(&self, _: &AgentServer) -> Vec<BoxFuture<'static, ()>> {
        let counts = Arc::clone(&self.0);
        vec![Box::pin(async move {
            counts.tasks.fetch_add(1, Ordering::Relaxed);
            pending().await
        })]
    }
}

impl RequestHooks for Mark {
    fn on_response(
        &self,
        request: AuthorizedRequest<'_>,
        mut response: Response<Body>,
    ) -> Result<Response<Body>, RequestError> {
        if request.destination.service.as_str() == TOY {
            self.0.inc();
            response.headers_mut().insert(ETAG, HeaderValue::from_static("\"toy\""));
        }
        Ok(response)
    }
}

impl RequestObserver for Toy {
    fn on_result(&self, _: &ObservedRequest<'_>) {
        self.0.results.fetch_add(1, Ordering::Relaxed);
    }

    fn on_audit_line(&self, _: &[u8]) {
        self.0.audit_lines.fetch_add(1, Ordering::Relaxed);
    }
}

impl PeerHooks for Toy {
    fn answer(&self, question: &str) -> Option<BoxFuture<'_, Result<String, &'static str>>> {
        (question == "\"toy\"").then(|| Box::pin(ready(Ok("\"yes\"".to_owned()))) as _)
    }
}

impl TunnelFeature for Toy {
    fn attach(&self, _: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        self.0.tunnels.fetch_add(1, Ordering::Relaxed);
        Some(Box::new(self.clone()))
    }
}

impl Attachment for Toy {
    fn run<'a>(&'a mut self, _: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(pending())
    }
}

#[tokio::test(start_paused = true)]
async fn feature_takes_part_in_everything_through_one_trait() {
    let toy = Toy::default();
    let world = World::with_feature(Box::new(toy.clone()));
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);

    let services = Services::new().with_fn(TOY, async |_| Response::new(Body::from("hello")));
    let _agent = world.agent(services).await;
    assert_eq!(count(&toy.0.tunnels), 1, "one of the two tunnels");

    let response = world.get("/agents/prod/toy/v1/greeting").await;
    assert_eq!(
        (response.status().as_u16(), response.headers().get(ETAG).map(HeaderValue::as_bytes)),
        (200, Some(&b"\"toy\""[..]))
    );
    assert_eq!(text(response).await, "hello");
    assert_eq!((count(&toy.0.results), world.metric("kas_toy_marked_total")), (1, 1.0));
    let metrics = telemetry::ExpositionFormat::OpenMetrics.render(&world.kas.admin.registry);
    assert!(metrics.contains("service=\"toy\""), "the request has the type of the feature");

    assert_eq!(text(send(&world, Method::GET, "/toy").await).await, TOY);
    assert_eq!(text(internal_api::get(&world, "/api/v1/toy").await).await, TOY);

    let hooks = world.kas.features.peer_hooks();
    let answers = hooks.iter().filter_map(|hook| hook.answer("\"toy\""));
    assert_eq!(futures_util::future::join_all(answers).await, [Ok("\"yes\"".to_owned())]);

    let tasks = world.kas.features.background_tasks(&world.kas.agents);
    let tasks = tokio::spawn(futures_util::future::join_all(tasks));
    tokio::task::yield_now().await;
    assert_eq!(count(&toy.0.tasks), 1);
    tasks.abort();
}

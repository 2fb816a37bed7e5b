//! Traces of requests in kas, agentk and the cluster.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use agentk_core::Services;
use gateway::test_support::Traces;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::world::{World, endless, text};
use opentelemetry::{
    Context,
    trace::{SpanId, SpanKind, Status, TraceId},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanProcessor},
};
use parking_lot::Mutex;
use telemetry::{Program, SampleRatio, Tracer};
use tunnel::Body;

use crate::audit::{audit, lines};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// A trace that the caller does not record.
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// Attributes of a server's span in OpenTelemetry's conventions for HTTP (docs/http/http-spans.md, commit 00e4b4ee). All are stable, and
/// the first three are required.
const CONVENTIONS: [&str; 15] = [
    "http.request.method",
    "url.path",
    "url.scheme",
    "client.address",
    "error.type",
    "http.request.method_original",
    "http.response.status_code",
    "http.route",
    "network.peer.address",
    "network.peer.port",
    "network.protocol.name",
    "network.protocol.version",
    "server.address",
    "server.port",
    "user_agent.original",
];

/// Returns the ended spans.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<SpanData>>>);

impl SpanProcessor for Spans {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.0.lock().push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Spans {
    fn tracer(&self, name: &'static str, ratio: f64) -> Tracer {
        let program = Program { name, version: "1", instance: "1".into() };
        Tracer::new(&program, SampleRatio::try_from(ratio).unwrap(), self.clone())
    }

    /// Returns the span of one program, once it has ended.
    async fn of(&self, program: &str) -> SpanData {
        loop {
            let of = |span: &&SpanData| span.instrumentation_scope.name() == program;
            let found = self.0.lock().iter().find(of).cloned();
            if let Some(span) = found {
                return span;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn count(&self) -> usize {
        self.0.lock().len()
    }
}

/// Starts a kas and an agentk that trace this fraction of the requests.
fn world(spans: &Spans, ratio: f64, trust_callers: bool) -> World {
    let traces = Traces { tracer: spans.tracer("kas", ratio), trust_callers, scheme: "https" };
    World::traced(traces, spans.tracer("agentk", 1.0))
}

/// Returns a cluster that echoes the trace context.
fn echo() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.uri().path() == "/watch" {
            return Response::new(endless("first"));
        }
        let all = |name| request.headers().get_all(name).iter().map(|value| value.to_str().expect("ASCII"));
        let said =
            format!("{}|{}", all("traceparent").collect::<String>(), all("tracestate").collect::<String>());
        Response::new(Body::from(said))
    })
}

/// Sends a request with a context. Returns the context that reached the cluster.
async fn ask(world: &World, traceparent: &str) -> (String, String) {
    let mut request = world.request("/agents/prod/kubernetes/api/v1/secrets?fieldSelector=hidden");
    request.headers_mut().insert("traceparent", traceparent.parse().unwrap());
    request.headers_mut().insert("tracestate", "vendor=1".parse().unwrap());
    let said = text(world.send(request).await).await;
    let (parent, state) = said.split_once('|').unwrap();
    (parent.to_owned(), state.to_owned())
}

fn parent_of(context: &str) -> (TraceId, SpanId) {
    (TraceId::from_hex(&context[3..35]).unwrap(), SpanId::from_hex(&context[36..52]).unwrap())
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    span.attributes.iter().find(|known| known.key.as_str() == key).map(|known| known.value.to_string())
}

#[tokio::test(start_paused = true)]
async fn line_of_the_audit_log_has_the_trace() {
    let world = world(&Spans::default(), 1.0, true);
    let sink = audit(&world);
    let _agent = world.agent(echo()).await;
    for (path, status) in
        [("/agents/prod/kubernetes/api/v1/secrets", 200), ("/agents/test/kubernetes/api", 404)]
    {
        let mut request = world.request(path);
        request.headers_mut().insert("traceparent", CALLER.parse().unwrap());
        text(world.send(request).await).await;
        let line = lines(&world, &sink).await.remove(0);
        assert_eq!((&line["trace_id"], &line["status"]), (&TRACE.into(), &status.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn without_tracing_a_callers_context_passes_unchanged() {
    let world = World::new();
    let _agent = world.agent(echo()).await;
    assert_eq!(ask(&world, CALLER).await, (CALLER.into(), "vendor=1".into()));
    assert_eq!(ask(&world, "nonsense").await.0, "nonsense");
}

#[tokio::test(start_paused = true)]
async fn request_has_a_span_of_kas_with_a_child_of_agentk() {
    let spans = Spans::default();
    let world = world(&spans, 1.0, false);
    let _agent = world.agent(echo()).await;
    let (seen, state) = ask(&world, CALLER).await;
    let (kas, agentk) = (spans.of("kas").await, spans.of("agentk").await);

    assert_eq!(parent_of(&seen), (agentk.span_context.trace_id(), agentk.span_context.span_id()));
    assert_eq!(agentk.parent_span_id, kas.span_context.span_id());
    assert_eq!(agentk.span_context.trace_id(), kas.span_context.trace_id());
    assert_eq!(spans.count(), 2, "nothing that kas and agentk say to each other is traced");

    for span in [&kas, &agentk] {
        assert_eq!(span.name, "GET kubernetes");
        assert_eq!(attribute(span, "http.response.status_code").as_deref(), Some("200"));
        assert_eq!(span.status, Status::Unset);
        assert!(attribute(span, "kas.request.id").is_some());
        assert!(!format!("{span:?}").contains("hidden"), "a query may hold secrets");
    }
    assert_eq!(attribute(&kas, "kas.request.id"), attribute(&agentk, "kas.request.id"));
    assert_eq!(attribute(&kas, "kas.agent.name").as_deref(), Some("prod"));
    let events: Vec<_> = kas.events.iter().map(|event| &*event.name).collect();
    assert_eq!(events, ["request.sent", "response.head"]);
    assert_eq!(state, "", "the tracestate was another trace's");
}

/// Returns the attributes of the spans of a program in the table of docs/metrics.md.
fn documented_attributes(program: &str) -> BTreeSet<&'static str> {
    let page = include_str!("../../../docs/metrics.md");
    let (_, table) = page.split_once("\n| attribute | program | value |\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let rows = table.lines().map(|row| row.split('|').collect::<Vec<&'static str>>());
    let of_program = rows.filter(|cells| ["both", program].contains(&cells[2].trim()));
    of_program.flat_map(|cells| cells[1].split('`').skip(1).step_by(2)).collect()
}

/// The request is one that sets every attribute: the cluster fails, and HTTP does not define the method.
#[tokio::test(start_paused = true)]
async fn attributes_follow_the_conventions_of_opentelemetry_and_the_documents() {
    let spans = Spans::default();
    let world = world(&spans, 1.0, false);
    let failing = Services::new().with_fn("kubernetes", async |_: Request<Body>| {
        let mut response = Response::new(Body::from("failed"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    let _agent = world.agent(failing).await;
    let mut request = world.request("/agents/prod/kubernetes/version");
    *request.method_mut() = Method::from_bytes(b"PURGE").unwrap();
    request.headers_mut().insert("host", "[2001:db8::1]:8154".parse().unwrap());
    request.headers_mut().insert("user-agent", "kubectl/v1.37.0".parse().unwrap());
    text(world.send(request).await).await;
    for (program, scheme) in [("kas", "https"), ("agentk", "http")] {
        let span = spans.of(program).await;
        assert_eq!(span.span_kind, SpanKind::Server);
        let of_span = |key: &str| attribute(&span, key);
        assert_eq!(of_span("url.scheme").as_deref(), Some(scheme), "{program}");
        assert_eq!(
            (&*span.name, of_span("http.request.method").as_deref()),
            ("HTTP kubernetes", Some("_OTHER"))
        );
        assert_eq!(of_span("http.request.method_original").as_deref(), Some("PURGE"), "{program}");
        assert!(CONVENTIONS[..3].iter().all(|key| of_span(key).is_some()), "{program}: {span:?}");
        let keys: BTreeSet<&str> = span.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        for key in &keys {
            assert!(CONVENTIONS.contains(key) || key.starts_with("kas."), "{program}: {key}");
        }
        assert_eq!(keys, documented_attributes(program), "{program}");
    }
    let kas = spans.of("kas").await;
    assert_eq!(attribute(&kas, "server.address").as_deref(), Some("2001:db8::1"));
    assert_eq!(attribute(&kas, "server.port").as_deref(), Some("8154"));
}

#[tokio::test(start_paused = true)]
async fn trace_of_untrusted_caller_is_linked() {
    let spans = Spans::default();
    let world = world(&spans, 1.0, false);
    let _agent = world.agent(echo()).await;
    ask(&world, UNSAMPLED).await;
    let kas = spans.of("kas").await;
    assert_eq!(kas.parent_span_id, SpanId::INVALID);
    assert_ne!(kas.span_context.trace_id().to_string(), TRACE);
    let links: Vec<_> = kas.links.iter().map(|link| link.span_context.clone()).collect();
    assert_eq!((links.len(), links[0].trace_id().to_string().as_str()), (1, TRACE));
}

#[tokio::test(start_paused = true)]
async fn trace_of_trusted_caller_is_continued() {
    let spans = Spans::default();
    let world = world(&spans, 0.0, true);
    let _agent = world.agent(echo()).await;
    let (seen, state) = ask(&world, CALLER).await;
    let kas = spans.of("kas").await;
    assert_eq!((kas.span_context.trace_id(), kas.parent_span_id), parent_of(CALLER));
    assert!(kas.links.is_empty());
    assert_eq!((&seen[3..35], state.as_str()), (TRACE, "vendor=1"));
}

#[tokio::test(start_paused = true)]
async fn unsampled_trace_is_propagated_but_not_recorded() {
    let spans = Spans::default();
    let world = world(&spans, 0.0, false);
    let _agent = world.agent(echo()).await;
    let (seen, _) = ask(&world, CALLER).await;
    assert!(seen.ends_with("-00") && !seen.contains(TRACE), "{seen}");
    assert_eq!(spans.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn invalid_trace_context_is_ignored() {
    let spans = Spans::default();
    let world = world(&spans, 1.0, true);
    let _agent = world.agent(echo()).await;
    let (seen, state) = ask(&world, "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01").await;
    assert_eq!(spans.of("kas").await.parent_span_id, SpanId::INVALID);
    assert!(seen.len() == 55 && state.is_empty(), "{seen} {state}");
}

#[tokio::test(start_paused = true)]
async fn span_ends_with_the_last_byte() {
    let spans = Spans::default();
    let world = world(&spans, 1.0, false);
    let _agent = world.agent(echo()).await;
    let mut watch = world.get("/agents/prod/kubernetes/watch?watch=true").await;
    watch.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(spans.count(), 0);
    drop(watch);
    let (kas, agentk) = (spans.of("kas").await, spans.of("agentk").await);
    assert_eq!(attribute(&kas, "error.type"), None, "a watch ends when its reader leaves");
    assert_eq!(attribute(&agentk, "error.type"), None);
}

#[tokio::test(start_paused = true)]
async fn error_has_the_trace_id() {
    let spans = Spans::default();
    let world = world(&spans, 1.0, false);
    let response = world.get("/agents/prod/kubernetes/version").await;
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let said = text(response).await;
    let kas = spans.of("kas").await;
    assert_eq!(attribute(&kas, "error.type").as_deref(), Some("agent-not-connected"));
    assert_eq!(attribute(&kas, "http.response.status_code").as_deref(), Some("503"));
    assert!(matches!(kas.status, Status::Error { .. }));
    assert!(said.contains(&format!("Trace ID: {}\"", kas.span_context.trace_id())), "{said}");
    assert!(said.contains(&id), "{said}");
}

#[tokio::test(start_paused = true)]
async fn disconnect_is_not_recorded_as_a_response() {
    let spans = Spans::default();
    let world = world(&spans, 1.0, false);
    let services =
        Services::new().with_fn("kubernetes", async |_: Request<Body>| std::future::pending().await);
    let _agent = world.agent(services).await;
    let asked = tokio::time::timeout(Duration::from_secs(1), world.get("/agents/prod/kubernetes/")).await;
    assert!(asked.is_err());
    for program in ["kas", "agentk"] {
        let span = spans.of(program).await;
        assert_eq!(attribute(&span, "error.type").as_deref(), Some("cancelled"), "{program}");
    }
}

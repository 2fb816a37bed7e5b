//! Traces of the real programs, as a collector receives them.

use std::collections::BTreeSet;

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message as _;

use crate::support::{AGENT, Installation, RecordingServer, eventually};

/// Returns the resource and the first span of a program, or `None` before the collector has received it.
fn span_of(collector: &RecordingServer, program: &str) -> Option<(Vec<KeyValue>, Span)> {
    let batches = collector.requests();
    let batches = batches.iter().map(|sent| ExportTraceServiceRequest::decode(&*sent.body).unwrap());
    batches.flat_map(|batch| batch.resource_spans).find_map(|spans| {
        let resource = spans.resource.unwrap().attributes;
        let span = spans.scope_spans.into_iter().flat_map(|scope| scope.spans).next().unwrap();
        (text(&resource, "service.name")? == program).then_some((resource, span))
    })
}

/// Returns all spans that the collector has received.
fn spans_of(collector: &RecordingServer) -> impl Iterator<Item = Span> + use<> {
    let batches = collector.requests().into_iter();
    let batches = batches.map(|sent| ExportTraceServiceRequest::decode(&*sent.body).unwrap());
    let spans = batches.flat_map(|batch| batch.resource_spans).flat_map(|spans| spans.scope_spans);
    spans.flat_map(|scope| scope.spans)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|known| known.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn request_has_one_trace_from_kas_to_the_cluster() {
    let (collector, upstream) = (RecordingServer::start(), RecordingServer::start());
    let url = format!("http://{}", upstream.address);
    let mut world = Installation::with_traces(&url, &format!("http://{}", collector.address));
    let traceparent = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let path = format!("/agents/{AGENT}/prometheus/api/v1/query?query=secret");
    assert_eq!(world.curl(&path, &["--header", traceparent]).status, 200);

    eventually("the collector has received both spans", || {
        span_of(&collector, "kas").is_some() && span_of(&collector, "agentk").is_some()
    });
    let (kas_resource, kas) = span_of(&collector, "kas").unwrap();
    let (agentk_resource, agentk) = span_of(&collector, "agentk").unwrap();
    assert_eq!(agentk.parent_span_id, kas.span_id);
    assert_eq!(agentk.trace_id, kas.trace_id);
    assert!(kas.parent_span_id.is_empty());
    assert_eq!(hex(&kas.links[0].trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
    let seen = upstream.requests();
    let expected = format!("00-{}-{}-01", hex(&agentk.trace_id), hex(&agentk.span_id));
    assert_eq!(seen[0].header("traceparent"), Some(&*expected));
    for (resource, span) in [(&kas_resource, &kas), (&agentk_resource, &agentk)] {
        assert_eq!(span.name, "GET prometheus");
        assert!(
            text(resource, "service.version").is_some() && text(resource, "service.instance.id").is_some()
        );
    }
    let names = spans_of(&collector).map(|span| span.name).collect::<BTreeSet<_>>();
    assert_eq!(names, BTreeSet::from(["GET prometheus".to_owned()]), "requests of kas itself are not traced");
    let sent = collector.requests();
    assert!(sent.iter().all(|request| request.head[0] == "POST /v1/traces HTTP/1.1"));
    assert!(sent.iter().all(|request| request.header("authorization") == Some("Bearer collect")));
    assert!(!sent.iter().any(|request| String::from_utf8_lossy(&request.body).contains("secret")));
    eventually("the span is counted", || world.kas.metric("kas_spans_total") == 1.0);

    let id = hex(&kas.trace_id);
    for process in [&world.kas.process, &world.agent.process] {
        process.line("its trace", |line| line.contains("trace_id") && line.contains(&id));
    }

    // Both programs export their last spans before they exit.
    let refused = world.curl(&format!("/agents/{AGENT}/prometheus/api/v1/admin/tsdb/snapshot"), &[]);
    assert_eq!(refused.header("kas-error"), Some("not-proxied"));
    world.agent.process.terminate();
    world.kas.process.terminate();
    assert_eq!((world.agent.process.exit_code(), world.kas.process.exit_code()), (0, 0));
    let trace = refused.text().rsplit("Trace ID: ").next().unwrap()[..32].to_owned();
    assert_eq!(spans_of(&collector).filter(|span| hex(&span.trace_id) == trace).count(), 2);
}

#[test]
fn unreachable_collector_fails_no_request() {
    let upstream = RecordingServer::start();
    let mut world = Installation::with_traces(&format!("http://{}", upstream.address), "http://127.0.0.1:1");
    for _ in 0..3 {
        assert_eq!(world.curl(&format!("/agents/{AGENT}/prometheus/api/v1/query"), &[]).status, 200);
    }
    let is_export_error = |line: &str| line.contains("the collector did not accept spans");
    world.kas.process.line("the collector is away", is_export_error);
    world.kas.process.terminate();
    assert_eq!(world.kas.process.exit_code(), 0);
    let lines = world.kas.process.printed().lines().filter(|line| is_export_error(line)).count();
    assert!(lines <= 2, "kas failed at least four times, and logs this once in ten seconds: {lines}");
}

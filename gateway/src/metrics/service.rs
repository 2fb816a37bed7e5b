//! What is counted for each service. Nothing is looked up while a request is under way.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use proto::ServiceName;
use telemetry::Histogram;

use crate::timing::Stages;

/// Request types that a label may name. Agents invent names; labels must not grow with them.
const KNOWN: [&str; 5] = ["kubernetes", "prometheus", "gitops", "resources", "other"];

/// Status classes that a label may name.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// One for each name of [`KNOWN`].
#[derive(Clone, Debug)]
pub(super) struct Services {
    known: [Arc<ServiceMetrics>; KNOWN.len()],
    requests: Family<RequestLabels, Counter>,
}

/// What is counted for one service.
#[derive(Debug)]
pub struct ServiceMetrics {
    classes: [Counter; CLASSES.len()],
    queue: Histogram,
    tunnel: Histogram,
    upstream: Histogram,
    duration: Histogram,
    /// Requests whose answer has not ended.
    pub in_flight: Gauge,
    /// Bytes of requests' bodies.
    pub request_bytes: Counter,
    /// Bytes of answers' bodies.
    pub response_bytes: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    service: &'static str,
    /// `2xx`, …, or the reason of an answer of ours.
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabel {
    service: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    service: &'static str,
    stage: &'static str,
}

impl Services {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(&BUCKETS);
        let requests = Family::<RequestLabels, Counter>::default();
        let stages = Family::<StageLabels, Histogram>::new_with_constructor(histogram);
        let durations = Family::<ServiceLabel, Histogram>::new_with_constructor(histogram);
        let in_flight = Family::<ServiceLabel, Gauge>::default();
        let request_bytes = Family::<ServiceLabel, Counter>::default();
        let response_bytes = Family::<ServiceLabel, Counter>::default();
        registry.register(
            "kas_requests",
            "Requests of callers by service and result: a status class of the cluster, or the reason of our own error",
            requests.clone(),
        );
        registry.register_with_unit(
            "kas_request_stage",
            "Time of answered requests by stage: queue (until a tunnel took it), tunnel (to the agent and back), \
             upstream (until the cluster's answer began, as the agent says)",
            Unit::Seconds,
            stages.clone(),
        );
        registry.register_with_unit(
            "kas_request_duration",
            "Time from a request's head to the last byte of its answer",
            Unit::Seconds,
            durations.clone(),
        );
        registry.register("kas_requests_in_flight", "Requests whose answer has not ended", in_flight.clone());
        registry.register_with_unit(
            "kas_request",
            "Bytes of requests' bodies",
            Unit::Bytes,
            request_bytes.clone(),
        );
        registry.register_with_unit(
            "kas_response",
            "Bytes of answers' bodies",
            Unit::Bytes,
            response_bytes.clone(),
        );

        let known = KNOWN.map(|service| {
            let label = ServiceLabel { service };
            let stage = |stage| stages.get_or_create(&StageLabels { service, stage }).clone();
            let class = |result| requests.get_or_create(&RequestLabels { service, result }).clone();
            Arc::new(ServiceMetrics {
                classes: CLASSES.map(class),
                queue: stage("queue"),
                tunnel: stage("tunnel"),
                upstream: stage("upstream"),
                duration: durations.get_or_create(&label).clone(),
                in_flight: in_flight.get_or_create(&label).clone(),
                request_bytes: request_bytes.get_or_create(&label).clone(),
                response_bytes: response_bytes.get_or_create(&label).clone(),
            })
        });
        Self { known, requests }
    }

    pub(super) fn of(&self, service: &ServiceName) -> &Arc<ServiceMetrics> {
        let name = service.as_str().split('.').next().unwrap_or_default();
        let index = KNOWN.iter().position(|known| *known == name).unwrap_or(KNOWN.len() - 1);
        &self.known[index]
    }

    pub(super) fn refused(&self, reason: &'static str) {
        self.requests.get_or_create(&RequestLabels { service: "none", result: reason }).inc();
    }
}

impl ServiceMetrics {
    /// An answer has begun.
    pub fn answered(&self, status: StatusCode, stages: &Stages) {
        self.classes[class_index(status)].inc();
        self.queue.observe(stages.queue);
        self.tunnel.observe(stages.tunnel);
        self.upstream.observe(stages.upstream);
    }

    /// An answer has ended.
    pub fn ended(&self, after: Duration) {
        self.duration.observe(after);
    }
}

/// The class of a status, as a label.
pub fn class(status: StatusCode) -> &'static str {
    CLASSES[class_index(status)]
}

fn class_index(status: StatusCode) -> usize {
    (usize::from(status.as_u16()) / 100).clamp(1, CLASSES.len()) - 1
}

/// Seconds: from a local request to a watch of an hour.
static BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0];

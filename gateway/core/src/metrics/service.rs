//! Metrics of each service. The handles are resolved before a request uses them.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use proto::{Reason, ServiceName};
use telemetry::{DurationHistogram, HistogramFamily, Label, RegistryExt as _};

use crate::{request_types::RequestTypes, timing::RequestTiming};

/// The label of requests that kas answers with an error.
const NO_SERVICE: &str = "none";

/// The values of the label `result` for responses of the cluster.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The metrics of each request type.
#[derive(Clone, Debug)]
pub(super) struct Services {
    types: RequestTypes,
    known: Vec<(&'static str, Arc<ServiceMetrics>)>,
    requests: Family<RequestLabels, Counter>,
}

/// The metrics of one service.
#[derive(Debug)]
pub struct ServiceMetrics {
    classes: [Counter; CLASSES.len()],
    queue: DurationHistogram,
    tunnel: DurationHistogram,
    upstream: DurationHistogram,
    duration: DurationHistogram,
    /// Requests whose response has not ended.
    pub in_flight: Gauge,
    /// Bytes of request bodies.
    pub request_bytes: Counter,
    /// Bytes of response bodies.
    pub response_bytes: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    service: &'static str,
    /// `2xx`, …, or the reason of an error of kas.
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    service: &'static str,
    stage: &'static str,
}

impl Services {
    pub(super) fn register(registry: &mut Registry, types: &RequestTypes) -> Self {
        let requests: Family<RequestLabels, Counter> = registry.create(
            "kas_requests",
            "Requests of callers by service and result: a status class of the cluster, or the reason of an error of kas",
        );
        let stages: HistogramFamily<StageLabels> = registry.histograms(
            "kas_request_stage",
            "Time of answered requests by stage: queue (until it was sent), tunnel (to the agent and back), upstream (until the \
             head of the cluster's response, as reported by the agent)",
            &BUCKETS,
        );
        let durations: HistogramFamily<Label> = registry.histograms(
            "kas_request_duration",
            "Time from the head of a request to the last byte of its response",
            &BUCKETS,
        );
        let in_flight: Family<Label, Gauge> =
            registry.create("kas_requests_in_flight", "Requests whose response has not ended");
        let request_bytes: Family<Label, Counter> =
            registry.create_with_unit("kas_request", "Bytes of request bodies", Unit::Bytes);
        let response_bytes: Family<Label, Counter> =
            registry.create_with_unit("kas_response", "Bytes of response bodies", Unit::Bytes);

        // Errors exist from the start: the rate of a series misses the event with which it begins.
        for reason in Reason::ALL {
            let labels = RequestLabels { service: NO_SERVICE, result: reason.as_str() };
            drop(requests.get_or_create(&labels));
        }
        let of_type = |service| {
            let label = [("service", service)];
            let stage = |stage| stages.get_or_create(&StageLabels { service, stage }).clone();
            let class = |result| requests.get_or_create(&RequestLabels { service, result }).clone();
            let metrics = Arc::new(ServiceMetrics {
                classes: CLASSES.map(class),
                queue: stage("queue"),
                tunnel: stage("tunnel"),
                upstream: stage("upstream"),
                duration: durations.get_or_create(&label).clone(),
                in_flight: in_flight.get_or_create(&label).clone(),
                request_bytes: request_bytes.get_or_create(&label).clone(),
                response_bytes: response_bytes.get_or_create(&label).clone(),
            });
            (service, metrics)
        };
        Self { types: types.clone(), known: types.names().map(of_type).collect(), requests }
    }

    pub(super) fn service(&self, service: &ServiceName) -> &Arc<ServiceMetrics> {
        let name = self.types.of(service).name();
        let (_, metrics) =
            self.known.iter().find(|(known, _)| *known == name).expect("each type has metrics");
        metrics
    }

    /// Returns the times until requests of a type were sent to their agent.
    pub(super) fn queue(&self, name: &str) -> Option<DurationHistogram> {
        let (_, metrics) = self.known.iter().find(|(known, _)| *known == name)?;
        Some(metrics.queue.clone())
    }

    /// Returns the counter of an error of kas.
    pub(super) fn error_counter(&self, reason: &'static str) -> Counter {
        self.requests.get_or_create_owned(&RequestLabels { service: NO_SERVICE, result: reason })
    }

    pub(super) fn count_error(&self, reason: &'static str) {
        self.requests.get_or_create(&RequestLabels { service: NO_SERVICE, result: reason }).inc();
    }
}

impl ServiceMetrics {
    /// Records the head of a response.
    pub fn observe_head(&self, status: StatusCode, timing: &RequestTiming) {
        self.classes[class_index(status)].inc();
        self.queue.observe(timing.queue);
        self.tunnel.observe(timing.tunnel);
        self.upstream.observe(timing.upstream);
    }

    /// Records the end of a response. `duration` is the time since the head of the request.
    pub fn observe_end(&self, duration: Duration) {
        self.duration.observe(duration);
    }
}

fn class_index(status: StatusCode) -> usize {
    (usize::from(status.as_u16()) / 100).clamp(1, CLASSES.len()) - 1
}

/// Buckets in seconds: from a request in the same datacenter to a watch of one hour.
static BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0];

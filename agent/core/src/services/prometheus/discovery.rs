//! Finds the cluster's Prometheus by the labels of its Service, if the flags name a namespace and no URL.
//!
//! * **Search**: agentk lists the Services with one of five labels, in the order of `SELECTORS`; the first label that any
//!   Service has decides. Exactly one Service must have it: a guess among several could show one team's data to another, so
//!   that the owner of the cluster has to choose one with a label.
//! * **Connection**: agentk connects directly to the Service's cluster address, over HTTP and without a credential. The
//!   proxy of the API server (`services/<name>/proxy`) would load the API server with every byte, and the right to use it
//!   would let callers of the service `kubernetes` reach *all* of Prometheus, its administration included.
//!
//! A user who may label a Service in the namespace can have queries sent to its cluster address, at a port of that user's
//! choice, but to no other address: those of the node or of the cloud's metadata are refused, both in the Service and as the
//! result of a DNS lookup (CVE-2020-8555, CVE-2020-8562).
//!
//! The service `prometheus` is announced in any case. Until there is a server, requests fail with the reason.

mod select;

use std::{convert::Infallible, str::FromStr, time::Duration};

use proto::Reason;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use self::select::{DiscoveredService, Selection, ServiceList};
use super::{PrometheusServer, PrometheusService, ServerSource};
use crate::{ServiceError, services::KubernetesService, upstream::UpstreamConfig};

/// The label selectors, most specific first.
const SELECTORS: [&str; 5] = [
    // Set by the owner of the cluster.
    "agentk/prometheus=true",
    // The Helm chart `prometheus`, and kube-prometheus.
    "app.kubernetes.io/name=prometheus",
    // The Helm chart `kube-prometheus-stack`.
    "app=kube-prometheus-stack-prometheus",
    // The Service that the Prometheus operator creates in every namespace.
    "operated-prometheus=true",
    // Older versions of the Helm chart.
    "app=prometheus,component=server",
];
/// The limit of a list. More candidates need not be read to see that there are several.
const MAX_CANDIDATES: u32 = 10;
/// The time between two searches.
const SEARCH_PERIOD: Duration = Duration::from_secs(30);
/// The time that a request waits for the first search.
const FIRST_SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The namespaces whose Services are searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All namespaces, written `*`.
    All,
    /// The namespace with this name.
    One(String),
}

/// Searches for Prometheus, repeatedly.
#[derive(Debug)]
pub struct Discovery {
    kubernetes: KubernetesService,
    namespaces: Namespaces,
    result: watch::Sender<SearchResult>,
}

/// The server that the last successful search found.
#[derive(Clone, Debug)]
pub(super) struct DiscoveredServer(watch::Receiver<SearchResult>);

/// `None` until the first search has ended.
type SearchResult = Option<Result<PrometheusServer, ServiceError>>;

impl Discovery {
    /// Returns a discovery that has not searched yet.
    pub fn new(kubernetes: KubernetesService, namespaces: Namespaces) -> Self {
        Self { kubernetes, namespaces, result: watch::Sender::new(None) }
    }

    /// Returns a service that uses the server of the last successful search.
    pub fn service(&self) -> PrometheusService {
        PrometheusService(ServerSource::Discovered(DiscoveredServer(self.result.subscribe())))
    }

    /// Searches every 30 s. Never completes.
    pub async fn run(self) -> Infallible {
        loop {
            let found = self.search().await;
            self.publish(found);
            sleep(SEARCH_PERIOD).await;
        }
    }

    /// Searches once and returns a description of the server.
    pub async fn check(&self) -> Result<String, ServiceError> {
        let found = self.search().await??;
        let description = found.to_string();
        self.publish(Ok(Ok(found)));
        Ok(description)
    }

    /// Searches once. The outer error is that of the request to the API server, the inner one the reason why the list has no
    /// Prometheus.
    async fn search(&self) -> Result<Result<DiscoveredService, ServiceError>, ServiceError> {
        for selector in SELECTORS {
            let list: ServiceList = self.kubernetes.get(&self.namespaces.path(selector)).await?;
            match select::select(&list.items) {
                Selection::None => {}
                Selection::One(found) => return Ok(Ok(found)),
                Selection::Several(names) => {
                    let what = format!(
                        "several Services in {} have the label {selector}: {}; choose one with the label {}, or start \
                         agentk with --prometheus-url",
                        self.namespaces,
                        names.join(", "),
                        SELECTORS[0],
                    );
                    return Ok(Err(ServiceError::new(Reason::ClusterUnreachable, what)));
                }
            }
        }

        let what = format!(
            "there is no Prometheus in {}: give its Service the label {}, or start agentk with --prometheus-url",
            self.namespaces, SELECTORS[0],
        );
        Ok(Err(ServiceError::new(Reason::ClusterUnreachable, what)))
    }

    /// Publishes the result of a search. A server that is found again keeps its connections, and stays in use while the API
    /// server does not answer.
    fn publish(&self, found: Result<Result<DiscoveredService, ServiceError>, ServiceError>) {
        self.result.send_if_modified(|last| match (found, &last) {
            (Ok(Ok(found)), Some(Ok(server))) if server.url() == &found.url => false,
            (Ok(Ok(found)), _) => {
                tracing::info!(%found, "found Prometheus");
                let address_filter = crate::upstream::is_service_address;
                let config = UpstreamConfig { address_filter, ..UpstreamConfig::default() };
                *last = Some(Ok(PrometheusServer::new(found.url, config, None)));
                true
            }
            (Err(error), Some(Ok(server))) => {
                let url = server.url();
                tracing::debug!(%error, %url, "the search for Prometheus failed; the last server is used");
                false
            }
            (Ok(Err(error)) | Err(error), Some(Err(known))) if *known == error => false,
            (Ok(Err(error)) | Err(error), _) => {
                tracing::warn!(%error, "Prometheus was not found; queries fail");
                *last = Some(Err(error));
                true
            }
        });
    }
}

impl DiscoveredServer {
    /// Returns the server, or the reason why there is none. Waits for the first search, 10 s at most.
    pub(super) async fn server(&self) -> Result<PrometheusServer, ServiceError> {
        let mut receiver = self.0.clone();
        let searched = timeout(FIRST_SEARCH_TIMEOUT, receiver.wait_for(Option::is_some)).await;
        let result = searched.ok().and_then(Result::ok).and_then(|result| result.clone());
        result.unwrap_or_else(|| {
            let what = "agentk has not found Prometheus yet: the Kubernetes API does not answer";
            Err(ServiceError::new(Reason::ClusterTimeout, what))
        })
    }
}

impl Namespaces {
    fn path(&self, selector: &str) -> String {
        let selector = selector.replace('=', "%3D").replace(',', "%2C").replace('/', "%2F");
        let query = format!("services?labelSelector={selector}&limit={MAX_CANDIDATES}");
        match self {
            Self::All => format!("/api/v1/{query}"),
            Self::One(namespace) => format!("/api/v1/namespaces/{namespace}/{query}"),
        }
    }
}

impl FromStr for Namespaces {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        match text {
            "*" => Ok(Self::All),
            "" => Err("write the name of a namespace, or '*'"),
            _ if text.len() <= 63 && text.bytes().all(label) => Ok(Self::One(text.to_owned())),
            _ => Err("this is not the name of a namespace; write '*' for all of them"),
        }
    }
}

impl std::fmt::Display for Namespaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("any namespace"),
            Self::One(namespace) => write!(f, "the namespace {namespace}"),
        }
    }
}

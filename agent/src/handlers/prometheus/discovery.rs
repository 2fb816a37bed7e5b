//! Finds the cluster's Prometheus by the labels of its Service, for an agentk that was told a namespace and no URL.
//!
//! * **What is asked for**: the Services with one of five labels, in the order of `SELECTORS`; the first that any
//!   Service has decides. Exactly one must be left: a guess among several would show one team's data to another, so that
//!   there the owner of the cluster has to choose, with a label.
//! * **How it is reached**: directly, at the Service's cluster address, over HTTP and without a credential. Not through
//!   the API server's proxy (`services/<name>/proxy`), which costs the API server every byte, and whose right lets
//!   callers of the service `kubernetes` reach *all* of Prometheus, its administration included.
//!
//! Whoever may label a Service in the namespace can have queries sent to its cluster address, at a port of its choice, but
//! nowhere else: not to an address that no Service has, such as that of the node or of the cloud's metadata, be it written
//! into the Service or what its name resolves to (CVE-2020-8555, CVE-2020-8562).
//!
//! The service `prometheus` is announced in any case. Until there is a server, requests are told why.

mod address;
mod choice;

use std::{convert::Infallible, str::FromStr, time::Duration};

use proto::Reason;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use self::choice::{Choice, Found, ServiceList};
use super::{Prometheus, Server, Source};
use crate::{Failure, handlers::kubernetes::Kubernetes, upstream::Settings};

/// Label selectors, most telling first.
const SELECTORS: [&str; 5] = [
    // What the owner of the cluster chose.
    "agentk/prometheus=true",
    // The Helm chart `prometheus`, and kube-prometheus.
    "app.kubernetes.io/name=prometheus",
    // The Helm chart `kube-prometheus-stack`.
    "app=kube-prometheus-stack-prometheus",
    // What the Prometheus operator makes for every namespace.
    "operated-prometheus=true",
    // Older versions of the Helm chart.
    "app=prometheus,component=server",
];
/// More candidates need not be read to see that there are too many.
const MOST: u32 = 10;
/// Between two looks.
const EVERY: Duration = Duration::from_secs(30);
/// How long a request waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// Where to look for Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Everywhere, written `*`.
    All,
    /// In this one.
    One(String),
}

/// Looks for Prometheus.
#[derive(Debug)]
pub struct Discovery {
    kubernetes: Kubernetes,
    namespaces: Namespaces,
    found: watch::Sender<State>,
}

/// Where the server is that the last look found.
#[derive(Clone, Debug)]
pub(super) struct Finding(watch::Receiver<State>);

/// None until somebody looked.
type State = Option<Result<Server, Failure>>;

impl Discovery {
    /// Looks nowhere yet.
    pub fn new(kubernetes: Kubernetes, namespaces: Namespaces) -> Self {
        Self { kubernetes, namespaces, found: watch::Sender::new(None) }
    }

    /// Answers from what is found, at any time.
    pub fn prometheus(&self) -> Prometheus {
        Prometheus(Source::Discovered(Finding(self.found.subscribe())))
    }

    /// Looks now and then, for ever.
    pub async fn run(self) -> Infallible {
        loop {
            let looked = self.look().await;
            self.note(looked);
            sleep(EVERY).await;
        }
    }

    /// Looks once, and says in words what was found.
    pub async fn check(&self) -> Result<String, Failure> {
        let found = self.look().await??;
        let words = found.to_string();
        self.note(Ok(Ok(found)));
        Ok(words)
    }

    /// Fails if the API server does not answer; within, why what it answered is no Prometheus.
    async fn look(&self) -> Result<Result<Found, Failure>, Failure> {
        for selector in SELECTORS {
            let list: ServiceList = self.kubernetes.read(&self.namespaces.path(selector)).await?;
            match choice::choose(&list.items) {
                Choice::Nothing => {}
                Choice::One(found) => return Ok(Ok(found)),
                Choice::Several(names) => {
                    let what = format!(
                        "several Services in {} have the label {selector}: {}; choose one with the label {}, or start \
                         agentk with --prometheus-url",
                        self.namespaces,
                        names.join(", "),
                        SELECTORS[0],
                    );
                    return Ok(Err(Failure::new(Reason::ClusterUnreachable, what)));
                }
            }
        }

        let what = format!(
            "there is no Prometheus in {}: give its Service the label {}, or start agentk with --prometheus-url",
            self.namespaces, SELECTORS[0],
        );
        Ok(Err(Failure::new(Reason::ClusterUnreachable, what)))
    }

    /// A server that stays keeps its connections; one that was found survives an API server that does not answer.
    fn note(&self, looked: Result<Result<Found, Failure>, Failure>) {
        self.found.send_if_modified(|state| match (looked, &state) {
            (Ok(Ok(found)), Some(Ok(server))) if server.endpoint() == &found.endpoint => false,
            (Ok(Ok(found)), _) => {
                tracing::info!(%found, "found Prometheus");
                let settings = Settings { may_be_at: address::may_be_of_a_service, ..Settings::default() };
                *state = Some(Ok(Server::new(found.endpoint, settings, None)));
                true
            }
            (Err(failure), Some(Ok(server))) => {
                let address = server.endpoint();
                tracing::debug!(error = %failure, %address, "cannot look for Prometheus; the last one is used");
                false
            }
            (Ok(Err(failure)) | Err(failure), Some(Err(known))) if *known == failure => false,
            (Ok(Err(failure)) | Err(failure), _) => {
                tracing::warn!(error = %failure, "no Prometheus is found; queries are told so");
                *state = Some(Err(failure));
                true
            }
        });
    }
}

impl Finding {
    /// The server, or why there is none. Waits for the first look, not longer than a caller may.
    pub(super) async fn server(&self) -> Result<Server, Failure> {
        let mut found = self.0.clone();
        let looked = timeout(FIRST_LOOK, found.wait_for(Option::is_some)).await;
        let state = looked.ok().and_then(Result::ok).and_then(|state| state.clone());
        state.unwrap_or_else(|| {
            let what = "agentk is still looking for Prometheus: the Kubernetes API does not answer";
            Err(Failure::new(Reason::ClusterTimeout, what))
        })
    }
}

impl Namespaces {
    fn path(&self, selector: &str) -> String {
        let selector = selector.replace('=', "%3D").replace(',', "%2C").replace('/', "%2F");
        let query = format!("services?labelSelector={selector}&limit={MOST}");
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

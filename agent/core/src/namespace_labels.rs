//! Reads the labels of the cluster's namespaces while rules of the policy select by them.
//!
//! ```text
//!   a list every 10 s to 15 s ──► LabelStore, for 60 s from its begin ──► requests in flight are judged again if labels have changed
//!   403, or no list for 60 s ──► no labels are known: rules that allow do not match, rules that deny do
//! ```
//!
//! A list proves that its labels are current. A watch proves nothing while it is silent: its connection may be dead, and an API server whose
//! etcd was restored waits for versions that it has lost.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use agentk_policy::{LabelKeys, NamespaceLabels};
use http::{Request, Response};
use http_body_util::Limited;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    client::Body as KubeBody,
    core::ApiResource,
};
use proto::{ServiceName, short_line};
use tokio::time::{Instant, sleep_until, timeout};
use tower::ServiceExt;
use tunnel::Body;

use crate::{
    policy::PolicyEnforcer,
    services::{
        KubernetesService,
        kube_client::{KubeService, Restrictions, kube_service},
    },
};

/// The namespaces of one page. Their annotations arrive with them, and may have 256 KiB each.
const PAGE: u32 = 50;
/// The most bytes of a page, so that no owner of namespaces takes the memory of agentk.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// The time for all pages.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
/// The shortest wait between two lists, and the longest.
const MIN_WAIT: Duration = Duration::from_secs(10);
const MAX_WAIT: Duration = Duration::from_secs(15);
/// The wait after a list is this many times as long as the list, within the limits: a large cluster answers fewer lists.
const WAITS: u32 = 20;
/// The time for which labels are used after the begin of their list: the wait and two lists fit into it.
const MAX_AGE: Duration = Duration::from_secs(60);

const REFUSED: &str = "the API server does not let agentk list namespaces: grant its service account list of namespaces (rbac.namespaceLabels \
                       of the chart)";
const SILENT: &str = "the API server does not answer the list of namespaces";
const FAILED: &str = "the API server does not list the namespaces; the log of agentk has its error";

/// Keeps the labels of the policy up to date. Clones share it.
#[derive(Clone)]
pub struct LabelFollower {
    policy: Arc<PolicyEnforcer>,
    service: KubeService,
}

/// The reason why there is no list, and what it says in detail.
struct ListFailure {
    problem: &'static str,
    detail: String,
}

impl LabelFollower {
    /// Returns a follower, which sends nothing yet. The policy does not judge its requests.
    pub fn new(policy: Arc<PolicyEnforcer>, kubernetes: KubernetesService) -> Self {
        let service = kube_service(ServiceName::KUBERNETES, kubernetes, &Restrictions::default());
        Self { policy, service }
    }

    /// Follows the labels while they are needed. Never completes.
    pub async fn run(self) -> Infallible {
        let (mut needed, labels) = (self.policy.needed_labels(), self.policy.labels());
        let namespaces = self.namespaces();
        loop {
            let keys = needed.borrow_and_update().clone();
            if keys.is_empty() {
                labels.forget();
                // The sender lives as long as the policy.
                let _ = needed.changed().await;
                continue;
            }
            let begin = Instant::now();
            let listing_and_waiting = async {
                self.record(self.expiring(list(&namespaces, &keys)).await, begin);
                let end = Instant::now() + (begin.elapsed() * WAITS).clamp(MIN_WAIT, MAX_WAIT);
                self.expiring(sleep_until(end)).await;
            };
            tokio::select! {
                () = listing_and_waiting => {}
                _ = needed.wait_for(|needed| needed.is_empty() || !needed.is_subset(&keys)) => {}
            }
        }
    }

    /// Waits until the labels are known, if the policy in force depends on them.
    pub async fn known(&self) {
        let mut announcements = self.policy.labels().announcements();
        while self.policy.label_problem().is_some() {
            let _ = announcements.changed().await;
        }
    }

    /// Runs a future. The labels are forgotten when their time is over meanwhile.
    async fn expiring<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        if let Some(until) = self.policy.labels().usable_until() {
            tokio::select! {
                biased;
                () = sleep_until(until) => self.lose(SILENT, ""),
                output = &mut future => return output,
            }
        }
        future.await
    }

    /// Returns the client for namespaces. It spawns a task.
    fn namespaces(&self) -> Api<DynamicObject> {
        let limit = |response: Response<Body>| response.map(|body| Limited::new(body, MAX_PAGE_BYTES));
        let limited = ServiceExt::<Request<KubeBody>>::map_response(self.service.clone(), limit);
        let resource = ApiResource {
            group: String::new(),
            version: "v1".to_owned(),
            api_version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            plural: "namespaces".to_owned(),
        };
        Api::all_with(Client::new(limited, "default"), &resource)
    }

    /// Brings a list into force. Without one, the labels before it are used until their time is over, since the API server may restart. If RBAC
    /// refuses the list, they are lost at once.
    fn record(&self, listed: Result<NamespaceLabels, ListFailure>, begin: Instant) {
        let store = self.policy.labels();
        match listed {
            Ok(labels) => store.set(labels, begin + MAX_AGE),
            Err(ListFailure { problem, detail }) if problem == REFUSED || store.usable_until().is_none() => {
                self.lose(problem, &detail);
            }
            Err(ListFailure { problem, detail }) => {
                tracing::debug!(problem, error = detail, "the labels of namespaces could not be read again");
            }
        }
    }

    fn lose(&self, problem: &'static str, detail: &str) {
        if self.policy.labels().set_unknown(problem) {
            tracing::warn!(problem, error = detail, "the labels of namespaces are not known");
        }
    }
}

impl ListFailure {
    fn new(error: &kube::Error) -> Self {
        let is_refused = matches!(error, kube::Error::Api(status) if status.code == 403);
        let problem = if is_refused { REFUSED } else { FAILED };
        Self { problem, detail: short_line(error.to_string().as_bytes()) }
    }
}

async fn list(namespaces: &Api<DynamicObject>, keys: &LabelKeys) -> Result<NamespaceLabels, ListFailure> {
    match timeout(LIST_TIMEOUT, pages(namespaces, keys)).await {
        Ok(Ok(labels)) => Ok(labels),
        Ok(Err(error)) => Err(ListFailure::new(&error)),
        Err(_) => Err(ListFailure { problem: SILENT, detail: String::new() }),
    }
}

async fn pages(namespaces: &Api<DynamicObject>, keys: &LabelKeys) -> kube::Result<NamespaceLabels> {
    let mut labels = NamespaceLabels::empty(keys.clone());
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = namespaces.list_metadata(&page).await?;
        for namespace in list.items {
            let metadata = namespace.metadata;
            labels.set(&metadata.name.unwrap_or_default(), metadata.labels.unwrap_or_default());
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(labels),
        }
    }
}

#[cfg(test)]
mod tests;

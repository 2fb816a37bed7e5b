//! Watches objects of the cluster: the policies that ask for alerts, and the Events of policy engines.

use std::{sync::Arc, time::Duration};

use agentk_core::services::kube_client::kube_service;
use cluster_alerts::{Applied, PolicySet, engine::alert_of_event};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture};
use kube::{
    Api, Client,
    api::DynamicObject,
    core::ApiResource,
    runtime::watcher::{Config, Error, Event, watcher},
};
use proto::{ServiceName, agent_configuration::alerts::AlertPolicies, short_line};
use serde_json::Value;
use tokio::time::sleep;

use super::{Alerts, Filter};

/// The objects of one page.
const PAGE: u32 = 250;
/// The wait after an error.
const RETRY: Duration = Duration::from_secs(5);
/// The wait for a resource that does not exist, or that agentk may not read.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// One list and watch.
struct Watch<'a> {
    alerts: &'a Alerts,
    filter: &'a Filter,
    api: Api<DynamicObject>,
    /// The kind and the namespace.
    name: String,
}

/// Watches what the filter contains, anew when it changes. The future never completes.
pub(super) async fn follow(alerts: &Alerts) {
    let mut changes = alerts.filter.subscribe();
    loop {
        let filter = Arc::clone(&changes.borrow_and_update());
        let watches = futures_util::future::join_all(watches(alerts, &filter));
        tokio::select! {
            _ = watches => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
        // What the next watches do not find has to be gone.
        alerts.forget_policies();
        alerts.observation.lock().restart_watches();
    }
}

fn watches<'a>(alerts: &'a Alerts, filter: &'a Filter) -> Vec<BoxFuture<'a, ()>> {
    let service = kube_service(ServiceName::ALERTS, alerts.kubernetes.clone(), &alerts.restrictions);
    let client = Client::new(service, "default");
    let watch = |resource: &ApiResource, namespace: Option<&String>| {
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        };
        let name = format!("{}/{}", resource.plural, namespace.map_or("", String::as_str));
        Watch { alerts, filter, api, name }
    };
    let resource = |group: &str, version: &str, kind: &str, plural: &str| ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let places: Vec<Option<&String>> = match &filter.namespaces {
        Some(namespaces) => namespaces.iter().map(Some).collect(),
        None => vec![None],
    };
    let mut all = Vec::new();
    if alerts.sources.hubble.is_some() && filter.section.policies == AlertPolicies::Annotated {
        let policies = resource("cilium.io", "v2", "CiliumNetworkPolicy", "ciliumnetworkpolicies");
        all.extend(places.iter().map(|place| watch(&policies, *place).policies().boxed()));
        // They are in no namespace, so that no scope contains them.
        if !filter.scoped {
            let kind = "CiliumClusterwideNetworkPolicy";
            let policies = resource("cilium.io", "v2", kind, "ciliumclusterwidenetworkpolicies");
            all.push(watch(&policies, None).policies().boxed());
        }
    }
    if alerts.sources.policy_engines && !filter.section.event_reasons.is_empty() {
        let events = resource("", "v1", "Event", "events");
        all.extend(places.iter().map(|place| watch(&events, *place).events().boxed()));
    }
    all.push(std::future::pending().boxed());
    all
}

impl Watch<'_> {
    /// Keeps the policies up to date.
    async fn policies(self) {
        let mut set = PolicySet::default();
        // Until they are known, flows are taken for those of policies without alerts. The set of before serves while they are listed again.
        let (mut listing, mut is_known) = (false, false);
        let mut stream = watcher(self.api.clone(), Config::default().page_size(PAGE)).boxed();
        while let Some(event) = stream.next().await {
            let changed = match event {
                Ok(Event::Init) => {
                    (set, listing) = (PolicySet::default(), true);
                    if !is_known {
                        self.alerts.observation.lock().interrupt(&self.name);
                    }
                    false
                }
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    let Applied { changed, refused } = set.apply(&value(&object));
                    if let Some(refused) = refused {
                        self.alerts.metrics.drop_one(refused.as_str());
                    }
                    changed
                }
                Ok(Event::Delete(object)) => set.remove(&value(&object)),
                Ok(Event::InitDone) => {
                    (listing, is_known) = (false, true);
                    self.alerts.observation.lock().resume(&self.name);
                    true
                }
                Err(error) => {
                    if is_refused(&error) {
                        self.alerts.observation.lock().interrupt(&self.name);
                    }
                    self.wait(&error).await;
                    false
                }
            };
            if changed && !listing {
                self.alerts.set_policies(&self.name, set.clone());
            }
        }
    }

    /// Counts the Events that are written from now on. Those of before were counted when they were written, or before agentk began.
    async fn events(self) {
        let config = Config::default().page_size(PAGE).fields("type=Warning");
        let mut stream = watcher(self.api.clone(), config).boxed();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Apply(object)) => {
                    self.alerts.observation.lock().resume(&self.name);
                    self.alerts.observe_event(&value(&object), self.filter);
                }
                // Events that were written before the list are not counted.
                Ok(Event::Init) => self.alerts.observation.lock().interrupt(&self.name),
                Ok(Event::InitDone) => self.alerts.observation.lock().resume(&self.name),
                Ok(Event::InitApply(_) | Event::Delete(_)) => {}
                Err(error) => {
                    if is_refused(&error) {
                        self.alerts.observation.lock().interrupt(&self.name);
                    }
                    self.wait(&error).await;
                }
            }
        }
    }

    async fn wait(&self, error: &Error) {
        let message = short_line(error.to_string().as_bytes());
        tracing::debug!(watch = self.name, error = message, "a watch for alerts was interrupted");
        sleep(if is_refused(error) { LOOK_AGAIN } else { RETRY }).await;
    }
}

impl Alerts {
    /// Counts an Event, if it is an alert.
    pub(super) fn observe_event(&self, event: &Value, filter: &Filter) {
        let alert =
            alert_of_event(event, &filter.section.event_reasons, |namespace| filter.contains(namespace));
        match alert {
            Ok(alert) => {
                self.metrics.count(alert.key.verdict);
                self.observe(alert.key, alert.sample, alert.time);
            }
            Err(ignored) => self.metrics.drop_one(ignored.as_str()),
        }
    }
}

/// Returns whether the resource does not exist, or agentk may not read it.
fn is_refused(error: &Error) -> bool {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status)) => matches!(status.code, 403 | 404),
        _ => false,
    }
}

fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or(Value::Null)
}

//! Objects of the demo that change by themselves: rollouts, a container that crashes, a certificate that expires, and a change of an object
//! that comes from Git.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, interval_at};

use crate::simulator::{
    clock,
    cluster::{Cluster, create, deployment, object},
    pods,
    resources::{CERTIFICATES, CONFIG_MAPS, DEPLOYMENTS, EVENTS, PODS, Resource},
    response::StatusError,
    selector::text,
    store::{Key, Store, WriteMode},
};

const NAMESPACE: &str = "demo";
/// The Deployment with rollouts, its certificate, and the ConfigMap that a repository may have.
const ROLLED_OUT: &str = "checkout";
/// The Deployment whose container crashes.
const CRASHING: &str = "worker";
/// The time between two changes, and the number of them between two rollouts.
const PERIOD: Duration = Duration::from_secs(20);
const ROLLOUT: u64 = 3;
/// The time until the certificate expires, in seconds.
const VALIDITY: f64 = 150.0;
/// The seconds that a new pod of a rollout needs.
const STARTUP: u64 = 6;

/// Creates the objects.
pub(super) fn plant(store: &Store) -> Result<(), StatusError> {
    let crashing = deployment(CRASHING, 1, "simulated.invalid/worker:crash", 8082);
    create(store, &DEPLOYMENTS, Some(NAMESPACE), crashing)?;
    let mut rolled_out = deployment(ROLLED_OUT, 3, "simulated.invalid/checkout:1.0", 8083);
    let probe = json!({ "httpGet": { "path": "/ready", "port": 8083 }, "initialDelaySeconds": STARTUP });
    rolled_out["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = probe;
    create(store, &DEPLOYMENTS, Some(NAMESPACE), rolled_out)?;
    create(store, &CERTIFICATES, Some(NAMESPACE), certificate())
}

/// Changes the objects until the cluster stops.
pub(super) async fn run(cluster: Arc<Cluster>) {
    let mut ticks = interval_at(Instant::now() + PERIOD, PERIOD);
    for number in 1.. {
        tokio::select! {
            () = cluster.stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        crash(&cluster.store, number);
        expire(&cluster.store);
        drift(&cluster.store);
        if number % ROLLOUT == 0 {
            roll_out(&cluster.store, number / ROLLOUT);
        }
    }
}

fn roll_out(store: &Store, number: u64) {
    edit(store, &DEPLOYMENTS, ROLLED_OUT, |deployment| {
        let image = format!("simulated.invalid/checkout:1.{number}");
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] = image.into();
        let generation = deployment["metadata"]["generation"].as_u64().unwrap_or_default();
        deployment["metadata"]["generation"] = (generation + 1).into();
    });
}

/// Restarts the pods that crash. Each has an event, as from the kubelet.
fn crash(store: &Store, number: u64) {
    for (key, pod) in store.list(&PODS, Some(NAMESPACE)).objects {
        if pod["metadata"]["labels"]["app"] != CRASHING || !pods::is_running(&pod) {
            continue;
        }
        edit(store, &PODS, &key.name, pods::restart);
        let now = clock::timestamp();
        let event = json!({
            "type": "Warning",
            "reason": "BackOff",
            "message": format!("Back-off restarting failed container {CRASHING} in pod {}", key.name),
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": NAMESPACE,
                "name": key.name,
                "uid": pod["metadata"]["uid"],
            },
            "source": { "component": "kas-simulator" },
            "firstTimestamp": text(&pod, "/status/startTime"),
            "lastTimestamp": now,
            "count": number,
        });
        let name = format!("{}.backoff", key.name);
        let known = store.get(&Key::new(&EVENTS, NAMESPACE, &name)).is_some();
        if known {
            edit(store, &EVENTS, &name, |present| {
                present["lastTimestamp"] = event["lastTimestamp"].clone();
                present["count"] = event["count"].clone();
            });
        } else if let Err(failure) = create(store, &EVENTS, Some(NAMESPACE), object(&EVENTS, &name, event)) {
            tracing::warn!(%failure, "cannot create an event");
        }
    }
}

fn certificate() -> Value {
    let end = clock::format(clock::now() + VALIDITY);
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({ "type": kind, "status": status, "reason": reason, "message": message });
    object(
        &CERTIFICATES,
        "checkout-tls",
        json!({
            "spec": {
                "secretName": "checkout-tls",
                "dnsNames": ["checkout.simulated.invalid"],
                "issuerRef": { "kind": "ClusterIssuer", "name": "simulated" },
            },
            "status": {
                "notAfter": end,
                "renewalTime": clock::timestamp(),
                "conditions": [
                    condition("Ready", "True", "Ready", "Certificate is up to date and has not expired"),
                    condition("Issuing", "True", "Renewing", "Renewing certificate as renewal was scheduled"),
                ],
            },
        }),
    )
}

/// Marks the certificate as expired, and its renewal as failed, once its time has come.
fn expire(store: &Store) {
    edit(store, &CERTIFICATES, "checkout-tls", |certificate| {
        let end = text(certificate, "/status/notAfter").to_owned();
        if clock::parse(&end).is_none_or(|end| end > clock::now()) {
            return;
        }
        certificate["status"]["conditions"] = json!([
            { "type": "Ready", "status": "False", "reason": "Expired",
              "message": format!("Certificate expired on {end}") },
            { "type": "Issuing", "status": "False", "reason": "Failed",
              "message": "The issuer does not respond: it is simulated" },
        ]);
    });
}

/// Changes the ConfigMap of the repository, as somebody with `kubectl edit` would.
fn drift(store: &Store) {
    edit(store, &CONFIG_MAPS, "checkout-settings", |settings| settings["data"]["discount"] = "50".into());
}

/// Changes an object, if it exists.
fn edit(store: &Store, resource: &Resource, name: &str, edit: impl FnOnce(&mut Value)) {
    let key = Key::new(resource, NAMESPACE, name);
    let edited = store.put(&key, WriteMode::Commit, |present| {
        let mut object = present.cloned().ok_or_else(|| StatusError::not_found(resource, name))?;
        edit(&mut object);
        Ok::<_, StatusError>(object)
    });
    // A reader of the demo may have deleted it.
    if let Err(failure) = edited {
        tracing::debug!(%failure, "not changed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::{cluster, controller::Controller, selector::number};

    #[test]
    fn objects_change_as_those_of_a_real_cluster() {
        let cluster = Arc::new(Cluster::default());
        let store = &cluster.store;
        cluster::plant(store).expect("valid objects");
        plant(store).expect("valid objects");
        let mut controller = Controller::new(Arc::clone(&cluster));
        controller.reconcile_all();
        let object = |resource: &Resource, name: &str| {
            store.get(&Key::new(resource, NAMESPACE, name)).expect("it exists")
        };
        let ready = |name: &str| number(&object(&DEPLOYMENTS, name), "/status/readyReplicas");
        assert_eq!((ready("web"), ready(CRASHING), ready(ROLLED_OUT)), (Some(3), Some(0), Some(0)));

        crash(store, 1);
        crash(store, 2);
        let pods = store.list(&PODS, Some(NAMESPACE)).objects;
        let (key, pod) = pods.iter().find(|(key, _)| key.name.starts_with(CRASHING)).expect("it exists");
        let status = &pod["status"]["containerStatuses"][0];
        assert_eq!((&status["restartCount"], &status["ready"]), (&json!(3), &json!(false)));
        assert_eq!(status["state"]["waiting"]["reason"], "CrashLoopBackOff");
        assert_eq!(object(&EVENTS, &format!("{}.backoff", key.name))["count"], 2);

        roll_out(store, 7);
        controller.reconcile_all();
        let new =
            |(_, pod): &(Key, Arc<Value>)| text(pod, "/spec/containers/0/image").ends_with("checkout:1.7");
        assert_eq!(store.list(&PODS, Some(NAMESPACE)).objects.iter().filter(|pod| new(pod)).count(), 3);

        let is_valid =
            || object(&CERTIFICATES, "checkout-tls")["status"]["conditions"][0]["status"] == "True";
        expire(store);
        assert!(is_valid());
        edit(store, &CERTIFICATES, "checkout-tls", |certificate| {
            certificate["status"]["notAfter"] = clock::timestamp().into();
        });
        expire(store);
        assert!(!is_valid());

        drift(store);
        assert!(store.get(&Key::new(&CONFIG_MAPS, NAMESPACE, "checkout-settings")).is_none());
    }
}

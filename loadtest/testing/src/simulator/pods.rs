//! Pods: creation from a template, scheduling to the only node, start, and logs.
//!
//! Every running pod logs one line per second, numbered since its start. A line is a function of the pod and the number of
//! the line, so no lines are stored.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};

use crate::simulator::{
    clock,
    cluster::{Cluster, OpenStream},
    query::Query,
    request::ApiRequest,
    resources::PODS,
    response::{self, ApiResponse, StatusError},
    selector::{fields, items, number, section, text},
    store::Key,
};

/// The name of the only node.
pub(crate) const NODE: &str = "simulated-node";
pub(crate) const NODE_ADDRESS: &str = "192.0.2.1";

/// The label that identifies the template of a pod.
pub(crate) const TEMPLATE_HASH: &str = "pod-template-hash";

/// Returns a new pod of a deployment.
pub(crate) fn from_template(deployment: &Value, hash: &str, serial: u64) -> Value {
    let template = &deployment["spec"]["template"];
    let name = format!("{}-{hash}-{}", text(deployment, "/metadata/name"), suffix(serial));
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"],
        "spec": template["spec"],
    });
    let metadata = section(&mut pod, "metadata");
    metadata.insert("name".to_owned(), name.into());
    // There are no replica sets: the deployment owns its pods.
    metadata.insert(
        "ownerReferences".to_owned(),
        json!([{
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": deployment["metadata"]["name"],
            "uid": deployment["metadata"]["uid"],
            "controller": true,
            "blockOwnerDeletion": true,
        }]),
    );
    let labels = fields(metadata.entry("labels").or_insert(Value::Null));
    labels.insert(TEMPLATE_HASH.to_owned(), hash.into());
    pod
}

/// Schedules a new pod to the node, where it is pending.
pub(crate) fn schedule(pod: &mut Value) {
    let spec = section(pod, "spec");
    spec.insert("nodeName".to_owned(), NODE.into());
    spec.entry("restartPolicy").or_insert_with(|| "Always".into());
    let waiting = container_statuses(pod, &json!({ "waiting": { "reason": "ContainerCreating" } }), false);
    let now = clock::timestamp();
    fields(pod).insert(
        "status".to_owned(),
        json!({
            "phase": "Pending",
            "hostIP": NODE_ADDRESS,
            "conditions": [
                condition("PodScheduled", "True", &now),
                condition("Initialized", "True", &now),
                condition("ContainersReady", "False", &now),
                condition("Ready", "False", &now),
            ],
            "containerStatuses": waiting,
        }),
    );
}

/// Sets a pending pod to running. A container whose image has the tag `crash` ends at once.
pub(crate) fn start(pod: &mut Value, serial: u64) {
    let now = clock::timestamp();
    let is_ready = !crashes(pod);
    let ready = if is_ready { "True" } else { "False" };
    let mut statuses = container_statuses(pod, &json!({ "running": { "startedAt": now } }), is_ready);
    if !is_ready {
        statuses.iter_mut().for_each(|status| crash(status, 1));
    }
    let address = format!("10.244.{}.{}", serial / 250 % 250, serial % 250 + 1);
    fields(pod).insert(
        "status".to_owned(),
        json!({
            "phase": "Running",
            "hostIP": NODE_ADDRESS,
            "podIP": address,
            "podIPs": [{ "ip": address }],
            "startTime": now,
            "qosClass": "BestEffort",
            "conditions": [
                condition("PodScheduled", "True", &now),
                condition("Initialized", "True", &now),
                condition("ContainersReady", ready, &now),
                condition("Ready", ready, &now),
            ],
            "containerStatuses": statuses,
        }),
    );
}

/// Returns whether a pod was started.
pub(crate) fn is_running(pod: &Value) -> bool {
    text(pod, "/status/phase") == "Running"
}

/// Returns whether the containers of a pod run.
pub(crate) fn is_ready(pod: &Value) -> bool {
    is_running(pod) && !crashes(pod)
}

fn crashes(pod: &Value) -> bool {
    items(pod, "/spec/containers").iter().any(|container| text(container, "/image").ends_with(":crash"))
}

/// Starts the containers of a pod again, which end at once.
pub(crate) fn restart(pod: &mut Value) {
    let statuses = pod.pointer_mut("/status/containerStatuses").and_then(Value::as_array_mut);
    for status in statuses.into_iter().flatten() {
        let restarts = number(status, "/restartCount").unwrap_or_default() + 1;
        crash(status, restarts);
    }
}

fn crash(status: &mut Value, restarts: i64) {
    let now = clock::timestamp();
    status["restartCount"] = restarts.into();
    let words = "panic: the simulated database does not respond\n";
    status["lastState"] = json!({ "terminated": {
        "exitCode": 1, "reason": "Error", "message": words, "startedAt": now, "finishedAt": now,
    } });
    let message = "back-off 5m0s restarting failed container";
    status["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": message } });
}

/// Returns how long a pod is not ready after its start.
pub(crate) fn initial_delay(pod: &Value) -> Duration {
    let delay = number(pod, "/spec/containers/0/readinessProbe/initialDelaySeconds");
    Duration::from_secs(delay.and_then(|delay| u64::try_from(delay).ok()).unwrap_or_default())
}

/// Returns the uid of the deployment that owns a pod.
pub(crate) fn owner(pod: &Value) -> Option<&str> {
    let owner = items(pod, "/metadata/ownerReferences").iter().find(|owner| owner["kind"] == "Deployment")?;
    owner["uid"].as_str()
}

/// Returns the suffix of a generated name.
pub(crate) fn suffix(serial: u64) -> String {
    letters(hash(&serial), 5)
}

/// Returns a hash of a template.
pub(crate) fn template_hash(deployment: &Value) -> String {
    letters(hash(&deployment["spec"]["template"].to_string()), 10)
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The characters of suffixes: without vowels, as in Kubernetes, so that no suffix is a word.
fn letters(mut number: u64, length: usize) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let letter = |_| {
        let letter = ALPHABET[(number % 27) as usize];
        number /= 27;
        char::from(letter)
    };
    (0..length).map(letter).collect()
}

fn container_statuses(pod: &Value, state: &Value, ready: bool) -> Vec<Value> {
    let status = |container: &Value| {
        json!({
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "containerID": format!("simulated://{}", text(container, "/name")),
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
        })
    };
    items(pod, "/spec/containers").iter().map(status).collect()
}

fn condition(kind: &str, status: &str, since: &str) -> Value {
    json!({ "type": kind, "status": status, "lastTransitionTime": since })
}

/// Responds to `pods/log`.
pub(crate) fn log(call: &ApiRequest, key: &Key) -> Result<ApiResponse, StatusError> {
    let query = &call.query;
    let pod = call.cluster.store.get(key).ok_or_else(|| StatusError::not_found(&PODS, &key.name))?;
    check_container(&pod, query)?;
    if query.flag("previous") {
        return Err(StatusError::bad_request(format!(
            "pod \"{}\" has never restarted: it is simulated",
            key.name
        )));
    }
    let mut log = Log::of(key, &pod, query.flag("timestamps"));
    let past = log.past(query)?;
    if !query.flag("follow") {
        return Ok(response::text(StatusCode::OK, past));
    }
    let uid = text(&pod, "/metadata/uid").to_owned();
    let cluster = Arc::clone(&call.cluster);
    let follower = Follower { _open: cluster.open_stream(), cluster, key: key.clone(), uid, log };
    let lines =
        stream::unfold(follower, |mut follower| async { follower.next().await.map(|line| (line, follower)) });
    // An empty chunk would end the body (RFC 9112 section 7.1).
    let past = stream::iter(Some(past).filter(|past| !past.is_empty()));
    Ok(response::stream("text/plain; charset=utf-8", past.chain(lines)))
}

/// Refuses a container that does not exist or does not run yet.
pub(crate) fn check_container(pod: &Value, query: &Query) -> Result<(), StatusError> {
    let name = text(pod, "/metadata/name");
    let containers = items(pod, "/spec/containers");
    if let Some(wanted) = query.get("container").filter(|wanted| !wanted.is_empty())
        && !containers.iter().any(|container| container["name"] == wanted)
    {
        return Err(StatusError::bad_request(format!("container {wanted} is not valid for pod {name}")));
    }
    if !is_running(pod) {
        let why = format!("container in pod \"{name}\" is waiting to start: ContainerCreating");
        return Err(StatusError::bad_request(why));
    }
    Ok(())
}

/// The number of lines without `tailLines`: real nodes rotate logs, too.
const KEPT: u64 = 1000;

/// A position in the log of a pod.
struct Log {
    pod: String,
    crashes: bool,
    /// The Unix time of line 0.
    started: f64,
    timestamps: bool,
    next: u64,
}

impl Log {
    fn of(key: &Key, pod: &Value, timestamps: bool) -> Self {
        let started = clock::parse(text(pod, "/status/startTime")).unwrap_or_else(clock::now);
        Self { pod: key.name.clone(), crashes: crashes(pod), started, timestamps, next: 0 }
    }

    /// Returns the recent lines that match the query, and moves the position behind them.
    fn past(&mut self, query: &Query) -> Result<Bytes, StatusError> {
        let now = clock::now();
        let end = (now - self.started).max(0.0) as u64 + 1;
        let lines = query.number("tailLines")?.unwrap_or(KEPT).min(KEPT);
        let mut since = query.number("sinceSeconds")?.map(|seconds| now - seconds as f64);
        if let Some(time) = query.get("sinceTime") {
            let parsed = clock::parse(time);
            since = Some(
                parsed
                    .ok_or_else(|| StatusError::bad_request(format!("sinceTime: \"{time}\" is no time")))?,
            );
        }
        let first = since.map_or(0, |since| (since - self.started).max(0.0).ceil() as u64);
        self.next = end.saturating_sub(lines).max(first).min(end);
        let mut past = String::new();
        while self.next < end {
            past.push_str(&self.line());
        }
        Ok(past.into())
    }

    fn line(&mut self) -> String {
        let number = self.next;
        self.next += 1;
        let time = clock::format(self.started + number as f64);
        let prefix = if self.timestamps { format!("{time} ") } else { String::new() };
        if self.crashes {
            return format!(
                "{prefix}{time} FATAL the queue is missing; the container ends with 1 (simulated)\n"
            );
        }
        let milliseconds = 1 + suffix(number).bytes().map(u64::from).sum::<u64>() % 40;
        format!(
            "{prefix}{time} INFO simulated request served pod={} request={number} status=200 duration={milliseconds}ms\n",
            self.pod
        )
    }
}

struct Follower {
    cluster: Arc<Cluster>,
    key: Key,
    uid: String,
    log: Log,
    _open: OpenStream,
}

impl Follower {
    /// Waits for the next line, or forever if the pod is deleted.
    async fn next(&mut self) -> Option<Bytes> {
        let due = self.log.started + self.log.next as f64 - clock::now();
        tokio::select! {
            () = self.cluster.stop.cancelled() => return None,
            () = tokio::time::sleep(Duration::from_secs_f64(due.clamp(0.0, 1.0))) => {}
        }
        let pod = self.cluster.store.get(&self.key)?;
        (text(&pod, "/metadata/uid") == self.uid).then(|| self.log.line().into())
    }
}

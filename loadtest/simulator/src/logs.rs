//! `pods/log`: every running pod logs one line per second, numbered since its start.
//!
//! A line is a function of the pod and the number of the line, so no lines are stored.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::Value;

use super::clock;
use super::cluster::{Cluster, OpenStream};
use super::error::StatusError;
use super::fields::{items, text};
use super::pods;
use super::request::{ApiRequest, Query};
use super::resources::PODS;
use super::response::{self, ApiResponse};
use super::store::Key;

pub(crate) fn answer(call: &ApiRequest, key: &Key) -> Result<ApiResponse, StatusError> {
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
    if !pods::is_running(pod) {
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
    /// The Unix time of line 0.
    started: f64,
    timestamps: bool,
    next: u64,
}

impl Log {
    fn of(key: &Key, pod: &Value, timestamps: bool) -> Self {
        let started = clock::parse(text(pod, "/status/startTime")).unwrap_or_else(clock::now);
        Self { pod: key.name.clone(), started, timestamps, next: 0 }
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
        let milliseconds = 1 + pods::suffix(number).bytes().map(u64::from).sum::<u64>() % 40;
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

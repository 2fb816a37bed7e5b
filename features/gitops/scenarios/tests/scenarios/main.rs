//! Whole syncs against a cluster in memory.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod applying;
mod contested;
mod deletions;
mod departures;
mod diff;
mod foreign;
mod gitlab;
mod hooks;
mod jobs;
mod model;
mod unavailable;
mod waits;
mod waves;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use fake_cluster::{FakeCluster, error};
use kube_cluster::{Cause, Fence, Stopped};
use parking_lot::Mutex;
use proto::gitops::{ObjectCounts, ObjectId, ProjectState, SyncEvent, SyncEventKind};
use serde_json::json;
use tokio::time::{Duration, Instant, sleep};

use gitops_engine::{Engine, Outcome, SourceFile, SyncInput};

const HOUR: Duration = Duration::from_secs(3600);

struct Open;

impl Fence for Open {
    fn check(&self) -> Result<Instant, Stopped> {
        Ok(Instant::now() + HOUR)
    }
}

/// A fence that closes after some checks, as a lost Lease or a kill would.
struct ClosesAfter(AtomicUsize);

impl Fence for ClosesAfter {
    fn check(&self) -> Result<Instant, Stopped> {
        let left = self.0.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(1))).unwrap();
        if left == 0 { Err(Stopped::LostLease) } else { Ok(Instant::now() + HOUR) }
    }
}

/// A fence that closes when this is true.
struct ClosesOnSignal(Arc<AtomicBool>);

impl Fence for ClosesOnSignal {
    fn check(&self) -> Result<Instant, Stopped> {
        if self.0.load(SeqCst) { Err(Stopped::LostLease) } else { Ok(Instant::now() + HOUR) }
    }
}

struct Project {
    cluster: FakeCluster,
    engine: Engine<FakeCluster>,
    settings: String,
    approved: Option<String>,
    heal: bool,
    events: Arc<Mutex<Vec<SyncEvent>>>,
    start: Instant,
}

impl Project {
    fn new() -> Self {
        Self::of(FakeCluster::new())
    }

    fn of(cluster: FakeCluster) -> Self {
        let engine = Engine::new(cluster.clone(), cluster.clone(), "agentk");
        Self {
            cluster,
            engine,
            settings: "{}".to_owned(),
            approved: None,
            heal: true,
            events: Arc::default(),
            start: Instant::now(),
        }
    }

    fn with(mut self, settings: &str) -> Self {
        settings.clone_into(&mut self.settings);
        self
    }

    fn input(&self, text: &str) -> SyncInput {
        SyncInput {
            agent: proto::AgentId(7),
            project: "group/app".to_owned(),
            settings: serde_saphyr::from_str(&self.settings).unwrap(),
            files: vec![SourceFile { path: "app.yaml".to_owned(), content: text.to_owned().into() }].into(),
            commit: "abc".to_owned(),
            approved: self.approved.clone(),
            heal: self.heal,
            gitlab_project: Some(3),
            waiting: Vec::new(),
            earlier: ObjectCounts::default(),
            now: self.now(),
        }
    }

    /// The time of the paused clock, in milliseconds.
    fn now(&self) -> u64 {
        1_700_000_000_000 + u64::try_from(self.start.elapsed().as_millis()).unwrap()
    }

    async fn sync(&mut self, text: &str) -> Outcome {
        self.sync_with(text, &Open).await
    }

    /// Syncs as the worker does: as long as the sync waits for objects, it goes on.
    async fn sync_with(&mut self, text: &str, fence: &dyn Fence) -> Outcome {
        self.events.lock().clear();
        let mut input = self.input(text);
        loop {
            let outcome = self.pass(&input, fence).await;
            if outcome.stopped.is_some() || outcome.state != ProjectState::Syncing {
                return outcome;
            }
            sleep(Duration::from_secs(1)).await;
            input =
                SyncInput { waiting: outcome.waiting, earlier: outcome.objects, now: self.now(), ..input };
        }
    }

    async fn pass(&mut self, input: &SyncInput, fence: &dyn Fence) -> Outcome {
        let events = Arc::clone(&self.events);
        self.engine.sync(input, fence, &move |event| events.lock().push(event)).await
    }

    /// The events of one kind, as `object: message`.
    fn events(&self, kind: SyncEventKind) -> Vec<String> {
        let events = self.events.lock();
        let of_kind = events.iter().filter(|event| event.event == kind);
        of_kind
            .map(|event| format!("{}: {}", event.object.clone().unwrap_or_default(), event.message))
            .collect()
    }
}

fn config_map(name: &str, data: &str) -> String {
    format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n")
}

fn config_maps(names: &[&str]) -> String {
    names.iter().map(|name| config_map(name, "a: b")).collect()
}

fn namespace(name: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
}

fn id(kind: &str, namespace: &str, name: &str) -> ObjectId {
    let text = str::to_owned;
    ObjectId { group: String::new(), kind: text(kind), namespace: text(namespace), name: text(name) }
}

fn writes(requests: &[String]) -> Vec<&str> {
    let write = |request: &&str| ["apply ", "patch ", "delete "].iter().any(|verb| request.starts_with(verb));
    requests.iter().map(String::as_str).filter(write).collect()
}

fn toy(name: &str) -> String {
    format!("---\napiVersion: example.com/v1\nkind: Toy\nmetadata: {{name: {name}}}\n")
}

const PARENT: &str = "ConfigMap agentk/gitops-7-group-app-";

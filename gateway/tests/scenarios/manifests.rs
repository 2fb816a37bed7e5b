//! The subscription for manifests, while the configuration of the agent has no projects.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{AgentIdentity, ConfigurationSource, FileKey, ReadError, Reading};
use agentk_core::Services;
use bytes::Bytes;
use futures_util::{future::BoxFuture, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kas_testing::world::{RunningAgent, World};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;
use tunnel::Body;

use crate::set_configuration::Configuration;

const WITHOUT_PROJECTS: &str = "GET /v1/source?agent=1&projects=none";
const WITH_PROJECTS: &str = "GET /v1/source?agent=1";
const PROJECT: &str = "gitops: {manifest_projects: [{id: group/shop, suspend: true}]}";

/// A pod of agentk that notes the requests of kas.
#[derive(Clone)]
pub(crate) struct Pod {
    /// The methods and paths.
    requests: Arc<Mutex<Vec<String>>>,
    /// The lists of projects.
    lists: Arc<Mutex<Vec<Value>>>,
    /// The problems of projects.
    problems: Arc<Mutex<Vec<Value>>>,
    /// The status of responses to subscriptions. 200 is a stream that makes kas the source.
    status: Arc<AtomicU16>,
    /// The streams that are open.
    pub(crate) streams: Arc<AtomicUsize>,
}

/// Counts a stream while it exists.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A source that does not respond.
#[derive(Debug)]
struct Unavailable;

impl ConfigurationSource for Unavailable {
    fn read<'a>(
        &'a self,
        _: &'a AgentIdentity,
        _: Option<&'a FileKey>,
    ) -> BoxFuture<'a, Result<Option<Reading>, ReadError>> {
        Box::pin(async { Err(ReadError::Unavailable("connection refused".to_owned())) })
    }
}

impl Pod {
    pub(crate) fn new(status: u16) -> Self {
        Self {
            requests: Arc::default(),
            lists: Arc::default(),
            problems: Arc::default(),
            status: Arc::new(AtomicU16::new(status)),
            streams: Arc::default(),
        }
    }

    /// Connects with two tunnels.
    pub(crate) async fn connect(&self, world: &World) -> RunningAgent {
        let agent = world.agent(self.services()).await;
        sleep(Duration::from_secs(20)).await;
        agent
    }

    pub(crate) fn services(&self) -> Services {
        let pod = self.clone();
        let services = Services::new().with_fn("manifests", move |request: Request<Body>| {
            let pod = pod.clone();
            async move { pod.respond(request).await }
        });
        services.with_fn("configuration", async |_: Request<Body>| Response::new(Body::empty()))
    }

    async fn respond(&self, request: Request<Body>) -> Response<Body> {
        self.requests.lock().push(format!("{} {}", request.method(), request.uri()));
        let mut status = self.status.load(Relaxed);
        if request.uri().path() != "/v1/source" {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            match &*path {
                "/v1/projects" => self.lists.lock().push(serde_json::from_slice(&body).unwrap()),
                "/v1/problem" => self.problems.lock().push(serde_json::from_slice(&body).unwrap()),
                _ => {}
            }
            status = 204;
        } else if status == 200 {
            return self.subscribe();
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status.try_into().unwrap();
        response
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock())
    }

    /// Returns the message of each problem since the last call.
    fn take_problems(&self) -> Vec<String> {
        let problems = std::mem::take(&mut *self.problems.lock());
        problems.iter().map(|problem| problem["message"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the ids of the projects in each list since the last call.
    fn take_lists(&self) -> Vec<Vec<String>> {
        let lists = std::mem::take(&mut *self.lists.lock());
        let ids = |list: &Value| {
            let projects = list["projects"].as_array().unwrap().iter();
            projects.map(|project| project["id"].as_str().unwrap().to_owned()).collect()
        };
        lists.iter().map(ids).collect()
    }

    fn subscribe(&self) -> Response<Body> {
        self.streams.fetch_add(1, Relaxed);
        let notices = ["\"standby\"\n", "\"active\"\n"].into_iter();
        let lines =
            stream::unfold((notices, Counted(Arc::clone(&self.streams))), async |(mut notices, counted)| {
                let Some(notice) = notices.next() else { return std::future::pending().await };
                Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from(notice))), (notices, counted)))
            });
        Response::new(Body::new(StreamBody::new(Box::pin(lines))))
    }
}

fn configure(world: &World, text: &str) -> Configuration {
    let configuration = Configuration::default();
    configuration.set(text);
    world.kas.agents.configuration.add_source(Arc::new(configuration.clone()));
    configuration
}

async fn change(world: &World, configuration: &Configuration, text: &str) {
    configuration.set(text);
    world.kas.agents.configuration.wake("group/agents");
    sleep(Duration::from_secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn agent_without_projects_has_one_request_for_former_ones() {
    // An agentk that does not know the parameter refuses it.
    for status in [204, 400] {
        let (world, pod) = (World::new(), Pod::new(status));
        let configuration = configure(&world, "gitops: {manifest_projects: []}");
        let _agent = pod.connect(&world).await;
        sleep(Duration::from_secs(600)).await;
        change(&world, &configuration, "observability: {logging: {level: debug}}").await;
        assert_eq!(pod.take_requests(), [WITHOUT_PROJECTS], "once, through one of the tunnels");

        pod.status.store(200, Relaxed);
        change(&world, &configuration, PROJECT).await;
        assert_eq!(pod.take_requests().iter().filter(|request| *request == WITH_PROJECTS).count(), 1);
        assert_eq!(pod.take_lists(), [["group/shop"]]);
    }
}

#[tokio::test(start_paused = true)]
async fn subscription_that_fails_is_tried_again_less_and_less_often() {
    let (world, pod) = (World::new(), Pod::new(502));
    let _configuration = configure(&world, "");
    let _agent = pod.connect(&world).await;
    sleep(Duration::from_secs(580)).await;
    let asked = pod.take_requests().len();
    assert_eq!(asked, 7, "after 0, 5, 15, 35, 75, 155 and 315 s");
    pod.status.store(204, Relaxed);
    sleep(Duration::from_secs(900)).await;
    assert_eq!(pod.take_requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn former_projects_are_orphaned_until_the_configuration_has_projects() {
    let (world, pod) = (World::new(), Pod::new(200));
    let configuration = configure(&world, "");
    let _agent = pod.connect(&world).await;
    assert_eq!((pod.take_lists(), pod.streams.load(Relaxed)), (vec![vec![]], 1));
    assert!(pod.take_requests().contains(&WITHOUT_PROJECTS.to_owned()));

    change(&world, &configuration, PROJECT).await;
    assert!(pod.take_requests().contains(&WITH_PROJECTS.to_owned()));
    assert_eq!((pod.take_lists(), pod.streams.load(Relaxed)), (vec![vec!["group/shop".to_owned()]], 1));
    change(&world, &configuration, "").await;
    assert_eq!(pod.take_lists(), [[""; 0]]);
    assert!(pod.take_requests().iter().all(|request| !request.starts_with("GET")), "the streams stay");
}

#[tokio::test(start_paused = true)]
async fn replica_that_cannot_read_the_configuration_orphans_nothing() {
    let (world, pod) = (World::new(), Pod::new(200));
    world.kas.agents.configuration.add_source(Arc::new(Unavailable));
    let _agent = pod.connect(&world).await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(pod.take_requests(), [WITHOUT_PROJECTS], "agentk can show the projects");
    assert!(pod.take_lists().is_empty());
}

#[tokio::test(start_paused = true)]
async fn interval_below_that_of_the_operator_is_a_problem_of_the_project() {
    let world = World::with(|config| config.agent.gitops.min_interval = Duration::from_secs(60));
    let pod = Pod::new(200);
    let project =
        |interval: &str| format!("gitops: {{manifest_projects: [{{id: group/shop, interval: {interval}}}]}}");
    let configuration = configure(&world, &project("59s"));
    let _agent = pod.connect(&world).await;
    let expected = "interval is 59s, and the operator of kas allows 1m or more (agent.gitops.min_interval)";
    assert_eq!(pod.take_problems(), [expected]);
    change(&world, &configuration, &project("60s")).await;
    let problems = pod.take_problems();
    assert!(
        !problems.is_empty() && problems.iter().all(|problem| !problem.contains("min_interval")),
        "{problems:?}"
    );
}

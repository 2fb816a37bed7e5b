//! agentk as its program runs it, with a cluster in memory: the events that its features send through kas, and the groups of its graph.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use agent::{App, cli::Cli};
use cores::Cores;
use http::Method;
use kas_gitops::GitopsConfig;
use kas_testing::world::{World, text};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::SecretString;
use serde_json::{Value, json};
use tempfile::TempDir;
use testing::{
    simulator::Simulator,
    skip::{installed, skipped},
};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};
use tunnel::Body;

use crate::{
    events::{list, run_events},
    set_configuration::Configuration,
    webhooks::{self, KEY, PATIENCE, Receiver},
};

const KUBERNETES: &str = "/agents/prod/kubernetes";
const CONFIG_MAPS: &str = "/agents/prod/kubernetes/api/v1/namespaces/demo/configmaps";
/// agentk reports a change by others, and does not revert it.
const CONFIGURATION: &str =
    "gitops: {manifest_projects: [{id: shop/web, default_namespace: demo, self_heal: report}]}";
const MANIFEST: &str =
    "{apiVersion: v1, kind: ConfigMap, metadata: {name: checkout}, data: {discount: '10'}}\n";
const DOCUMENT: &str = include_str!("../../../docs/graph.md");

/// A kas and a cluster, between which an agentk syncs a Git repository.
struct Setup {
    directory: TempDir,
    world: World,
    simulator: Simulator,
    _tasks: AbortOnDropHandle<()>,
}

/// A running agentk, in a thread of its own. Dropping it stops it.
struct Agentk {
    _stop: DropGuard,
    _accepting: AbortOnDropHandle<()>,
}

impl Setup {
    /// Starts kas and the cluster, or skips the test without Git.
    fn or_skip() -> Option<Self> {
        if !installed("git") {
            skipped("there is no git");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let repository = directory.path().join("repository");
        create_repository(&repository);
        let world = World::with(|config| config.agent.gitops = gitops(&repository));
        let configuration = Configuration::default();
        configuration.set(CONFIGURATION);
        world.kas.agents.configuration.add_source(Arc::new(configuration));
        let tasks = run_events(&world);
        let simulator = Simulator::start(([127, 0, 0, 1], 0).into()).unwrap();
        Some(Self { directory, world, simulator, _tasks: tasks })
    }

    /// Starts an agentk, and waits for its tunnels.
    async fn start_agentk(&self) -> Agentk {
        let kubeconfig = self.directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, self.simulator.kubeconfig()).unwrap();
        Agentk::start(&self.world, &kubeconfig).await
    }

    /// Sends a request of the caller through kas, and returns the answer of agentk or of the cluster.
    async fn send(&self, method: Method, path: &str, body: Option<(&str, Value)>) -> Value {
        let mut request = self.world.request(path);
        *request.method_mut() = method;
        if let Some((content_type, value)) = body {
            request.headers_mut().insert("content-type", content_type.parse().unwrap());
            *request.body_mut() = Body::from(value.to_string());
        }
        let response = self.world.send(request).await;
        let status = response.status();
        let body = text(response).await;
        assert!(status.is_success(), "{path}: {status} {body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        self.send(Method::GET, path, None).await
    }

    async fn create(&self, path: &str, object: Value) {
        self.send(Method::POST, path, Some(("application/json", object))).await;
    }

    /// Returns the names of the members of a group.
    async fn members(&self, group: &str) -> Vec<String> {
        let group = utf8_percent_encode(group, NON_ALPHANUMERIC);
        let list = self.get(&format!("/agents/prod/graph/v1/objects?group={group}")).await;
        let objects = list["objects"].as_array().unwrap().iter();
        objects.map(|object| object["name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Agentk {
    async fn start(world: &World, kubeconfig: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kas = format!("--kas-address=ws://{}", listener.local_addr().unwrap());
        let agents = Arc::clone(&world.kas.agents);
        let accepting = tokio::spawn(async move {
            while let Ok((io, peer)) = listener.accept().await {
                let agents = Arc::clone(&agents);
                tokio::spawn(async move { agents.serve(io, peer, Arc::default()).await });
            }
        });
        let cluster = format!("--kubeconfig={}", kubeconfig.display());
        let flags =
            ["--observability-listen-address=127.0.0.1:0", "--pod-namespace=demo", "--policy-engine-alerts"];
        let flags = ["agentk", &kas, &cluster].into_iter().chain(flags).map(str::to_owned).collect();
        let stop = CancellationToken::new();
        let (token, until) = (world.agent_token.clone(), stop.clone());
        thread::spawn(move || run(flags, token, until));
        world.tunnels(2).await;
        Self { _stop: stop.drop_guard(), _accepting: AbortOnDropHandle::new(accepting) }
    }
}

/// Runs agentk until `stop`, as its program does.
fn run(arguments: Vec<String>, token: SecretString, stop: CancellationToken) {
    let options = Cli::from_arguments(arguments).unwrap().run.unwrap();
    let (cores, threads) = Cores::start(1).unwrap();
    let app = App::build(options, Some(token), cores, watch::Sender::new(()), None).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let probes = runtime.handle().clone();
    runtime.block_on(app.run(&probes, stop)).unwrap();
    runtime.shutdown_background();
    threads.detach();
}

fn create_repository(path: &Path) {
    std::fs::create_dir(path).unwrap();
    std::fs::write(path.join("checkout.yaml"), MANIFEST).unwrap();
    git(path, &["init", "--quiet", "--initial-branch=main"]);
    git(path, &["add", "--all"]);
    git(path, &["commit", "--quiet", "--message=Give a discount"]);
}

fn git(path: &Path, arguments: &[&str]) {
    let author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false"];
    let status = Command::new("git").current_dir(path).args(author).args(arguments).status();
    assert!(status.unwrap().success(), "git {arguments:?}");
}

/// Returns the configuration of a kas that reads the repository, of which the agent knows the id.
fn gitops(repository: &Path) -> GitopsConfig {
    let file = Path::new("kas.yaml");
    let url = repository.display();
    let text = format!(
        "{{min_interval: 1s, poll_period: 1s, repositories: [{{id: shop/web, agents: [prod], repository: {{url: '{url}'}}}}]}}"
    );
    let mut config: GitopsConfig = settings::parse(file, &text).unwrap();
    config.validate(file).unwrap();
    config
}

/// An Event as Kyverno writes it about a Pod.
fn violation(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("web-1.{number}"), "namespace": "demo"},
        "type": "Warning", "reason": "PolicyViolation", "message": "Pod demo/web-1: [validate-tag] fail",
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "demo", "name": "web-1"},
        "source": {"component": "kyverno-scan"},
    })
}

/// Tries again until a condition is true.
async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < until, "{what}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn sync_drift_and_alert_of_agentk_reach_the_list_and_a_signed_webhook() {
    let Some(setup) = Setup::or_skip() else { return };
    let mut receiver = Receiver::start(vec![]).await;
    let webhook = webhooks::local(setup.directory.path(), &receiver.url(), ", kinds: [sync, drift, alert]");
    let _delivering = webhooks::run(&setup.world, &webhook);
    webhooks::active(std::slice::from_ref(&setup.world)).await;
    let _agentk = setup.start_agentk().await;
    for (kind, severity, message) in [
        ("sync", "info", "synced: "),
        ("drift", "warning", "out-of-sync: "),
        ("alert", "warning", "demo/Pod/web-1 violates "),
    ] {
        match kind {
            "drift" => {
                let patch = json!({"data": {"discount": "50"}});
                let body = Some(("application/merge-patch+json", patch));
                setup.send(Method::PATCH, &format!("{CONFIG_MAPS}/checkout"), body).await;
            }
            "alert" => {
                let mut number = 0;
                eventually("agentk counts a violation", async || {
                    number += 1;
                    let events = format!("{KUBERNETES}/api/v1/namespaces/demo/events");
                    setup.create(&events, violation(number)).await;
                    setup.get("/agents/prod/alerts/v1/alerts").await["total"] == 1
                })
                .await;
            }
            _ => {}
        }
        let delivery = receiver.next().await;
        delivery.verify(&KEY);
        let delivered = delivery.json();
        assert_eq!(delivered["type"], format!("kas.{kind}"), "{delivered}");
        let listed = list(&setup.world, &format!("?kind={kind}")).await;
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0]["id"], delivery.header("webhook-id"));
        for event in [&listed[0], &delivered["data"]] {
            assert_eq!((&event["kind"], &event["severity"]), (&json!(kind), &json!(severity)), "{event}");
            assert_eq!((&event["agent"]["id"], &event["agent"]["name"]), (&json!(1), &json!("prod")));
            assert!(event["message"].as_str().unwrap().starts_with(message), "{event}");
            let project = if kind == "alert" { Value::Null } else { json!("shop/web") };
            assert_eq!(event["subject"]["project"], project, "{event}");
        }
    }
    let object = setup.get(&format!("{CONFIG_MAPS}/checkout")).await;
    assert_eq!(object["data"]["discount"], "50", "agentk only reports");
}

/// Objects that are in one group each, with the name of the object and its metadata. agentk has made the object of GitOps.
fn grouped_objects() -> BTreeMap<&'static str, (&'static str, Value)> {
    BTreeMap::from([
        (
            "gitlab:7/production",
            (
                "environment",
                json!({"labels": {"app.gitlab.com/project_id": "7", "app.gitlab.com/environment_slug": "production"}}),
            ),
        ),
        (
            "gitlab-app:shop-web/live",
            (
                "auto-deploy",
                json!({"annotations": {"app.gitlab.com/app": "shop-web", "app.gitlab.com/env": "live"}}),
            ),
        ),
        ("gitops:shop/web", ("checkout", Value::Null)),
        (
            "helm:demo/shop",
            (
                "release",
                json!({
                    "labels": {"app.kubernetes.io/managed-by": "Helm"},
                    "annotations": {"meta.helm.sh/release-name": "shop", "meta.helm.sh/release-namespace": "demo"},
                }),
            ),
        ),
        (
            "flux:flux-system/apps",
            (
                "kustomization",
                json!({"labels": {
                    "kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
                }}),
            ),
        ),
        (
            "argocd:shop",
            (
                "tracked",
                json!({"annotations": {"argocd.argoproj.io/tracking-id": "shop:/ConfigMap:demo/tracked"}}),
            ),
        ),
        (
            "applyset:applyset-x-v1",
            ("part-of-set", json!({"labels": {"applyset.kubernetes.io/part-of": "applyset-x-v1"}})),
        ),
        (
            "gitlab-inventory:7-3",
            ("of-inventory", json!({"annotations": {"config.k8s.io/owning-inventory": "7-3"}})),
        ),
        ("application:demo/store", ("part-of-store", json!({"labels": {"part": "store"}}))),
        ("namespace:apart", ("settings", json!({"namespace": "apart"}))),
    ])
}

/// Returns the kinds of groups that docs/graph.md lists.
fn documented_kinds() -> BTreeSet<&'static str> {
    let (_, section) = DOCUMENT.split_once("\n## Groups\n").unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with("| id |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_start_matches("| `").split_once(':').unwrap().0).collect()
}

#[tokio::test]
async fn each_kind_of_group_selects_its_members_for_a_caller() {
    let groups = grouped_objects();
    let kinds: BTreeSet<_> = groups.keys().map(|id| id.split_once(':').unwrap().0).collect();
    assert_eq!(kinds, documented_kinds());
    let Some(setup) = Setup::or_skip() else { return };
    let _agentk = setup.start_agentk().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "apart"}});
    setup.create(&format!("{KUBERNETES}/api/v1/namespaces"), namespace).await;
    let application = json!({
        "apiVersion": "app.k8s.io/v1", "kind": "Application", "metadata": {"name": "store"},
        "spec": {"selector": {"matchLabels": {"part": "store"}}},
    });
    setup.create(&format!("{KUBERNETES}/apis/app.k8s.io/v1/namespaces/demo/applications"), application).await;
    for (name, metadata) in groups.values().filter(|(_, metadata)| !metadata.is_null()) {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        object["metadata"]["name"] = json!(name);
        let namespace = metadata["namespace"].as_str().unwrap_or("demo");
        setup.create(&format!("{KUBERNETES}/api/v1/namespaces/{namespace}/configmaps"), object).await;
    }
    for (id, (name, _)) in groups {
        eventually(id, async || setup.members(id).await == [name]).await;
    }
    for id in ["helm:demo/other", "argocd:shop-2", "gitops:shop", "namespace:apart/settings"] {
        assert_eq!(setup.members(id).await, [""; 0], "{id}");
    }
}

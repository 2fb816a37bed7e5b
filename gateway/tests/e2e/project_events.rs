//! Events of Git projects, from a program to receivers and objects in a real cluster.

use std::{collections::BTreeMap, fs, path::Path, slice, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;

use crate::support::{
    Agent, AgentOptions, Cluster, Fleet, GitRepository, Installation, Kas, Namespace, RecordedRequest,
    RecordingServer, Redis, eventually,
};

const CONFIGURATION: &str = ".gitlab/agents/prod/config.yaml";
/// The key of the receiver, whose file has it in base64.
const KEY: [u8; 32] = [7; 32];

/// Definitions of Flux and Argo CD, as far as agentk knows them.
const DEFINITIONS: [(&str, &str, &str, &str); 4] = [
    ("source.toolkit.fluxcd.io", "v1", "GitRepository", "gitrepositories"),
    ("source.toolkit.fluxcd.io", "v1", "OCIRepository", "ocirepositories"),
    ("notification.toolkit.fluxcd.io", "v1", "Receiver", "receivers"),
    ("argoproj.io", "v1alpha1", "Application", "applications"),
];

/// Installs the definitions. They stay, because tests that run at the same time share them.
fn install_definitions(cluster: &Cluster) {
    for (group, version, kind, plural) in DEFINITIONS {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version = json!({
            "name": version, "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema},
        });
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced", "versions": [version],
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            },
        });
        apply(cluster, &definition.to_string());
        established(cluster, &format!("{plural}.{group}"));
    }
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/charts/agentk/templates/crd-repository.yaml");
    let text = fs::read_to_string(file).unwrap();
    let plain: String =
        text.lines().filter(|line| !line.contains("{{")).map(|line| format!("{line}\n")).collect();
    apply(cluster, &plain);
    established(cluster, "repositories.kas.dev");
}

fn apply(cluster: &Cluster, text: &str) {
    cluster.kubectl.ok_with_stdin(&["apply", "--server-side", "--force-conflicts", "--filename", "-"], text);
}

fn established(cluster: &Cluster, name: &str) {
    cluster.kubectl.ok(&["wait", "--for=condition=Established", "--timeout=40s", &format!("crd/{name}")]);
}

/// Returns the section of the internal API, whose secret the test writes.
fn api_section(directory: &Path) -> (&'static str, Value) {
    let secret = directory.join("api-secret");
    fs::write(&secret, BASE64_STANDARD.encode([1; 32])).unwrap();
    ("api", json!({"listen": {"address": "127.0.0.1:0", "authentication_secret_file": secret}}))
}

/// Sends an event to a replica, and returns the status.
fn report(kas: &Kas, event: &Value) -> u16 {
    let token = format!("Authorization: Bearer {}", kas_testing::internal_api::valid_token());
    let url = format!("http://{}/api/v1/events", kas.api());
    kas.curl(&["--header", &token, "--data", &event.to_string(), &url]).status
}

fn event(number: u32) -> Value {
    json!({
        "id": format!("e-{number}"),
        "project": "group/shop",
        "ref": "refs/heads/main",
        "after": format!("{number:040x}"),
        "urls": ["https://gitlab.example.com/group/shop.git"],
    })
}

fn policy(directory: &Path, urls: &[String]) -> String {
    let key = directory.join("receiver-key");
    fs::write(&key, BASE64_STANDARD.encode(KEY)).unwrap();
    let webhooks: String =
        urls.iter().map(|url| format!("- {{url: '{url}', secretFile: '{}'}}\n", key.display())).collect();
    format!("rules: [{{name: all, action: allow, services: ['*']}}]\nwebhooks:\n{webhooks}")
}

/// Returns the event of a request whose signature is valid.
fn verified(request: &RecordedRequest) -> Value {
    let header = |name: &str| request.header(name).unwrap().to_owned();
    let (id, time) = (header("webhook-id"), header("webhook-timestamp"));
    let body = std::str::from_utf8(&request.body).unwrap();
    let mac = Hmac::<Sha256>::new_from_slice(&KEY).unwrap();
    let mac = mac.chain_update(format!("{id}.{time}.{body}")).finalize().into_bytes();
    assert_eq!(header("webhook-signature"), format!("v1,{}", BASE64_STANDARD.encode(mac)));
    let event: Value = serde_json::from_str(body).unwrap();
    assert_eq!(event["id"], id);
    event
}

/// Starts kas with the configuration of a repository, and agentk in a namespace.
struct World {
    cluster: Cluster,
    namespace: Namespace,
    repository: GitRepository,
    installation: Installation,
    _directory: TempDir,
}

impl World {
    fn or_skip(topic: &str) -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let directory = TempDir::new().unwrap();
        let repository = GitRepository::or_skip(directory.path())?;
        install_definitions(&cluster);
        let namespace = cluster.namespace(topic);
        let configuration = json!({"poll_period": "1s", "repository": {"url": repository.path}});
        let mut installation = Installation::start(&cluster.kubeconfig, |options, _| {
            options.configuration = Some(configuration);
            options.sections = vec![api_section(directory.path())];
        });
        installation.agent_options.pod_namespace = Some(namespace.name.clone());
        Some(Self { cluster, namespace, repository, installation, _directory: directory })
    }

    fn configure(&self, text: &str) {
        self.repository.commit_files(&[(CONFIGURATION, Some(text))]);
    }

    /// Reports an event once agentk wants those of the project.
    fn report(&self, number: u32) {
        eventually("the event is kept", || {
            [200, 201].contains(&report(&self.installation.kas, &event(number)))
        });
    }

    fn get(&self, resource: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        let result = self.namespace.kubectl.run(&["get", resource, "-o", &path]);
        String::from_utf8(result.stdout).unwrap().trim().to_owned()
    }
}

#[test]
fn event_reaches_webhook_repository_flux_and_argo_once() {
    let Some(mut world) = World::or_skip("events") else { return };
    let receiver = RecordingServer::start();
    let url = format!("http://{}/hook", receiver.address);
    let namespace = world.namespace.name.clone();
    let objects = format!(
        "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {{name: shop, namespace: {namespace}}}\n\
         spec: {{url: 'ssh://git@gitlab.example.com/group/shop', interval: 1h}}\n---\n\
         apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {{name: other, namespace: {namespace}}}\n\
         spec: {{url: 'https://gitlab.example.com/group/other.git', interval: 1h}}\n---\n\
         apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {{name: shop, namespace: {namespace}}}\n\
         spec: {{source: {{repoURL: 'https://gitlab.example.com/group/shop.git'}}}}\n"
    );
    apply(&world.cluster, &objects);
    let policy = policy(world.installation.directory(), slice::from_ref(&url));
    world.installation.put_policy(&policy);
    world.configure(&format!(
        "notify:\n  projects:\n  - id: group/shop\n    refs: [refs/heads/main]\n    webhooks: [{{url: '{url}'}}]\n    \
         repository: {{namespace: {namespace}}}\n    argocd: {{namespace: {namespace}}}\nflux: {{}}\n"
    ));
    world.report(1);
    eventually("the webhook has the event", || !receiver.requests().is_empty());
    let received = verified(&receiver.requests()[0]);
    assert_eq!((&received["project"], &received["ref"]), (&json!("group/shop"), &json!("refs/heads/main")));
    assert_eq!(received["after"], format!("{:040x}", 1));
    eventually("the Repository has the commit", || {
        world.get("repositories.kas.dev", "{.items[*].status.commit}") == format!("{:040x}", 1)
    });
    let shown = world.namespace.kubectl.ok(&["get", "repositories.kas.dev"]);
    assert!(shown.contains("group-shop-main-") && shown.contains("refs/heads/main"), "{shown}");
    let requested = "{.metadata.annotations.reconcile\\.fluxcd\\.io/requestedAt}";
    eventually("Flux has the annotation", || world.get("gitrepository/shop", requested) == "e-1");
    let refresh = "{.metadata.annotations.argocd\\.argoproj\\.io/refresh}";
    eventually("Argo CD has the annotation", || world.get("application/shop", refresh) == "normal");
    assert_eq!(world.get("gitrepository/other", requested), "", "it is of another project");

    // The same event again, and a new process of agentk: nothing happens twice.
    world.namespace.kubectl.ok(&["annotate", "application/shop", "argocd.argoproj.io/refresh-"]);
    world.report(1);
    world.installation.agent.process.terminate();
    world.installation.agent.process.exit_code();
    world.installation.restart_agent();
    world.report(2);
    eventually("the next event arrives", || receiver.requests().len() == 2);
    assert_eq!(verified(&receiver.requests()[1])["id"], "e-2");
    eventually("the Repository has the next commit", || {
        world
            .get("repositories.kas.dev", "{.items[*].status.previousCommit}{.items[*].status.event}")
            .contains("e-2")
    });
    // An event of another branch has no effect here.
    let mut other = event(3);
    other["ref"] = "refs/heads/other".into();
    assert_eq!(report(&world.installation.kas, &other), 201);
    eventually("Flux has the annotation, because a source may follow the branch", || {
        world.get("gitrepository/shop", requested) == "e-3"
    });
    assert_eq!(receiver.requests().len(), 2);
}

/// A URL that the policy does not list, one that redirects to another server, and a name of a link-local address.
#[test]
fn webhook_goes_nowhere_else() {
    let Some(mut world) = World::or_skip("events-policy") else { return };
    let (good, elsewhere) = (RecordingServer::start(), RecordingServer::start());
    let [listed, unlisted] = [&good, &elsewhere].map(|server| format!("http://{}/hook", server.address));
    let redirecting = world.namespace.kubectl.clone();
    let location = format!("http://{}/stolen", elsewhere.address);
    let answer = format!(
        "HTTP/1.1 307 Temporary Redirect\\r\\nLocation: {location}\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n"
    );
    // It answers when the request has begun: an answer that is there before is none for the HTTP client.
    let script = format!(
        "mkfifo /tmp/head; while true; do \
         {{ read -r _; printf '{answer}'; cat > /dev/null; }} < /tmp/head | nc -l -p 8080 | tee -a /tmp/requests > /tmp/head; done"
    );
    world.namespace.pod("redirect", &script);
    let address = redirecting.ok(&["get", "pod", "redirect", "-o", "jsonpath={.status.podIP}"]);
    let redirect = format!("http://{}:8080/hook", address.trim());
    let policy = policy(world.installation.directory(), &[listed.clone(), redirect.clone()]);
    world.installation.put_policy(&policy);
    world.configure(&format!(
        "notify:\n  projects:\n  - id: group/shop\n    webhooks:\n    - url: {unlisted}\n    - url: {redirect}\n    - url: {listed}\n    \
         - url: http://169.254.169.254/latest\n"
    ));
    world.report(1);
    eventually("the listed URL has the event", || good.requests().len() == 1);
    eventually("the redirect is refused", || {
        world.installation.agent.process.printed().contains("redirects are not followed")
    });
    assert!(elsewhere.requests().is_empty());
    let show =
        || world.installation.kas.get_api("/api/v1/agents/prod")["configuration"]["warnings"].to_string();
    eventually("kas names file and line", || {
        let warnings = show();
        warnings.contains(&format!("config.yaml:5:7: notify.projects[0].webhooks[0].url: the policy of the cluster's owner does not list {unlisted}"))
            && warnings.contains("webhooks[3].url")
    });
    let requests = redirecting.ok(&["exec", "redirect", "--", "cat", "/tmp/requests"]);
    assert_eq!(requests.matches("POST /hook").count(), 1, "a redirect is final: {requests}");
}

/// GitLab's way: a Receiver with a Secret for each source, and a call of its path.
#[test]
fn receiver_of_flux_is_kept_and_called() {
    let Some(mut world) = World::or_skip("events-flux") else { return };
    let controller = RecordingServer::start();
    let namespace = world.namespace.name.clone();
    let source = |name: &str, project: &str| {
        format!(
            "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{url: 'https://gitlab.example.com/{project}.git'}}\n---\n"
        )
    };
    let foreign = format!(
        "apiVersion: notification.toolkit.fluxcd.io/v1\nkind: Receiver\nmetadata: {{name: gitlab-foreign, namespace: {namespace}, annotations: {{agent.gitlab.com/id: '999'}}}}\n\
         spec: {{type: generic}}\n"
    );
    apply(&world.cluster, &(source("shop", "group/shop") + &source("foreign", "group/foreign") + &foreign));
    let base = format!("http://{}", controller.address);
    world.installation.put_policy(&format!(
        "rules: [{{name: all, action: allow, services: ['*']}}]\nwebhooks: [{{url: '{base}/*'}}]\n"
    ));
    // The source of a project that the configuration names is that of an agent of the identity file.
    world.configure(&format!(
        "notify: {{projects: [{{id: group/shop}}, {{id: group/foreign}}]}}\nflux: {{webhook_receiver_url: '{base}'}}\n"
    ));
    eventually("the Receiver exists", || !world.get("receiver/gitlab-shop", "{.metadata.uid}").is_empty());
    let owner = world.get("receiver/gitlab-shop", "{.metadata.ownerReferences[0].name} {.metadata.annotations.agent\\.gitlab\\.com/project} {.spec.secretRef.name}");
    assert_eq!(owner, "shop group/shop gitlab-receiver-shop");
    assert_eq!(world.get("secret/gitlab-receiver-shop", "{.data.token}").len(), 44, "32 random characters");
    // The controller is not here, so the test writes its status.
    let status = "{\"status\": {\"webhookPath\": \"/hook/0123abcd\"}}";
    let patch = ["patch", "receiver/gitlab-shop", "--type=merge", "--patch", status];
    world.namespace.kubectl.ok(&patch);
    world.namespace.kubectl.run(&[&patch[..], &["--subresource=status"]].concat());
    world.report(1);
    eventually("the controller is called", || !controller.requests().is_empty());
    assert!(
        controller.requests()[0].head[0].starts_with("POST /hook/0123abcd "),
        "{:?}",
        controller.requests()
    );
    assert_eq!(
        world.get("receiver/gitlab-foreign", "{.spec.secretRef.name}"),
        "",
        "it belongs to another agent"
    );
}

/// After kill -9 of kas or agentk at any point, each event arrives, and twice at most if agentk was killed. `E2E_KILLS` is the number of
/// kills.
#[test]
fn killed_programs_lose_no_event() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let Some(redis) = Redis::or_skip() else { return };
    let directory = TempDir::new().unwrap();
    let Some(repository) = GitRepository::or_skip(directory.path()) else { return };
    let namespace = cluster.namespace("events-kill");
    let receiver = RecordingServer::start();
    let url = format!("http://{}/hook", receiver.address);
    repository.commit_files(&[(
        CONFIGURATION,
        Some(&*format!("notify: {{projects: [{{id: group/shop, webhooks: [{{url: '{url}'}}]}}]}}\n")),
    )]);
    let mut fleet = Fleet::new(redis.section(), &cluster.kubeconfig);
    fleet.options.configuration = Some(json!({"poll_period": "1s", "repository": {"url": repository.path}}));
    fleet.options.sections = vec![api_section(directory.path())];
    let policy_file = fleet.directory().join("policy.yaml");
    fs::write(&policy_file, policy(fleet.directory(), &[url])).unwrap();
    let mut kas = fleet.start_replica();
    fleet.options.agent_port = kas.agents.port();
    let start_agent = |fleet: &Fleet, kas: &Kas| {
        let options = AgentOptions {
            kas: kas.agent_url(&fleet.options),
            policy: Some(policy_file.clone()),
            pod_namespace: Some(namespace.name.clone()),
            ..fleet.agent_options.clone()
        };
        fleet.start_agent(&options)
    };
    let mut agent: Agent = start_agent(&fleet, &kas);
    let kills: u32 = std::env::var("E2E_KILLS").map_or(50, |kills| kills.parse().unwrap());
    let mut repeats = 0;
    for round in 1..=kills {
        eventually("the event is kept", || [200, 201].contains(&report(&kas, &event(round))));
        std::thread::sleep(Duration::from_millis(rand::random::<u64>() % 60));
        if round % 4 == 0 {
            agent.process.kill();
            namespace.kubectl.run(&["delete", "lease", "--all"]);
            agent = start_agent(&fleet, &kas);
            repeats += 1;
        } else {
            kas.process.kill();
            kas = fleet.start_replica();
        }
        eventually("the event has arrived", || {
            receiver.requests().iter().any(|request| verified(request)["id"] == format!("e-{round}"))
        });
    }
    let mut counts = BTreeMap::<String, usize>::new();
    for request in receiver.requests() {
        *counts.entry(verified(&request)["id"].to_string()).or_default() += 1;
    }
    assert_eq!(counts.len(), kills as usize, "{counts:?}");
    let extra: usize = counts.values().map(|count| count - 1).sum();
    assert!(extra <= repeats, "only a killed agentk may repeat its last event: {counts:?}");
    drop(agent);
}

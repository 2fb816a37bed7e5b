//! Tests of `kas quickstart`: the files are those with which kas, agentk and kubectl work.

use std::fs;

use agentk_core::{
    AgentToken, Services,
    cluster::{Cluster, KubeconfigOptions},
    upstream::{ClientTlsConfig, Pem, Upstream, UpstreamConfig},
};
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use http_body_util::BodyExt as _;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tunnel::Body;

use super::workspace::{Kas, SOON, Workspace, run_agent};

/// Returns a directory without files.
fn empty() -> Workspace {
    let directory = tempfile::tempdir().unwrap();
    Workspace { directory, agent_token: String::new(), caller_token: String::new() }
}

/// Runs an agent in this process with the written token and authority. Its cluster responds with the path of a request.
fn start_agent(workspace: &Workspace, kas: &Kas) -> AbortOnDropHandle<()> {
    let file = |name: &str| workspace.directory.path().join(name);
    let tls = ClientTlsConfig { ca: Some(Pem::File(file("ca.crt"))), ..ClientTlsConfig::default() };
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        Response::new(Body::from(request.uri().path().to_owned()))
    });
    run_agent(&format!("wss://{}", kas.agent), AgentToken::file(file("agent-token")), tls, services)
}

/// Sends a request as the user of the written kubeconfig.
async fn get(workspace: &Workspace, path: &str) -> (StatusCode, String) {
    let file = Some(workspace.directory.path().join("kubeconfig"));
    let cluster = Cluster::load(&KubeconfigOptions { file, context: None }).unwrap();
    let upstream =
        Upstream::new(cluster.url(), UpstreamConfig { tls: cluster.tls(), ..UpstreamConfig::default() });
    let mut request = Request::get(path).body(Body::empty()).unwrap();
    let authorization = cluster.authorization().await.unwrap().expect("the user has a token");
    request.headers_mut().insert(AUTHORIZATION, authorization);
    let response = upstream.send(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn written_files_connect_kas_an_agent_and_a_caller() {
    let workspace = empty();
    let printed = workspace.stdout("quickstart --host kas.test --directory .").await;
    let secrets = ["agent-token", "caller-token", "kas.key"].map(|name| workspace.read(name));
    assert!(secrets.iter().all(|secret| !printed.contains(secret)), "{printed}");
    assert!(printed.contains("config.kasAddress=wss://kas.test:8150"), "{printed}");
    assert!(printed.contains("/kas serve --config "), "the path of the program: {printed}");
    let good = "kas.yaml: good; 1 agents, 1 tokens of callers\n";
    assert_eq!(workspace.stdout("check-config kas.yaml").await, good);
    let again = workspace.stdout("quickstart --directory .").await;
    assert_eq!(again.split_once('\n').unwrap().1, printed.split_once('\n').unwrap().1);

    // The ports of the files may be in use.
    let config = [":8150", "127.0.0.1:8154", "127.0.0.1:8151"]
        .iter()
        .fold(workspace.read("kas.yaml"), |text, address| {
            text.replace(&format!("\"{address}\""), "\"127.0.0.1:0\"")
        });
    workspace.write("kas.yaml", &config);
    let kas = workspace.serve_by("quickstart --directory . --run").await;
    let port = format!(":{}/", kas.public.port());
    workspace.write("kubeconfig", &workspace.read("kubeconfig").replace(":8154/", &port));
    let _agent = start_agent(&workspace, &kas);
    let connected = timeout(SOON, async {
        loop {
            // A request waits for the agent for two seconds.
            let (status, body) = get(&workspace, "/version").await;
            if status == StatusCode::OK {
                return body;
            }
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
        }
    });
    assert_eq!(connected.await.expect("the agent connects"), "/version");
}

#[tokio::test]
async fn existing_files_are_not_changed() {
    let workspace = empty();
    workspace.stdout("quickstart --host kas.test --directory a").await;
    let before = workspace.read("a/identity.yaml");
    for (flags, code, expected) in [
        ("--directory a --host other.test", 64, "a was written with --agent laptop --host kas.test, "),
        ("--directory a --agent other", 64, "leave out these flags"),
    ] {
        let (exit, text) = workspace.failure(&format!("quickstart {flags}")).await;
        assert!(exit == code && text.contains(expected), "{flags}: {exit} {text}");
    }
    assert_eq!(workspace.read("a/identity.yaml"), before);

    fs::create_dir(workspace.directory.path().join("b")).unwrap();
    workspace.write("b/kas.yaml", "mine");
    let (exit, text) = workspace.failure("quickstart --directory b --host kas.test").await;
    assert!(
        exit == 73 && text.contains("b has files that are not changed: remove kas.yaml, or"),
        "{exit} {text}"
    );
    assert_eq!(workspace.read("b/kas.yaml"), "mine");
    assert_eq!(fs::read_dir(workspace.directory.path().join("b")).unwrap().count(), 1);
}

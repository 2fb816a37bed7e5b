//! Programs with a client library: the Kubernetes client for Python, and kube-rs.
//!
//! `kas kubeconfig` writes their kubeconfig.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use futures_util::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _, pin_mut};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod},
    apimachinery::pkg::apis::meta::v1::Status,
};
use kube::{
    Api, Client, Config, Error,
    api::{
        AttachParams, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, WatchEvent,
        WatchParams,
    },
    config::{KubeConfigOptions, Kubeconfig},
};
use secrecy::ExposeSecret as _;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{AGENT, Cluster, Installation, Kas, Namespace, eventually, path_argument, run, skipped};

const SERVER: &str =
    "mkdir -p /www; echo the page >/www/page; echo first; echo ready; exec httpd -f -p 8080 -h /www";

/// Starts kas, agentk and a pod, and returns them with the kubeconfig that `kas kubeconfig` writes.
fn prepare(cluster: &Cluster, topic: &str) -> (Installation, Namespace, PathBuf) {
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace(topic);
    namespace.pod("server", SERVER);
    let directory = world.directory();
    let (token, kubeconfig) = (directory.join("caller-token"), directory.join("written"));
    fs::write(&token, world.tokens.ops.expose_secret()).unwrap();
    let mut kas = Kas::command();
    kas.args(["kubeconfig", "--agent", AGENT, "--server", &world.kas.url("")]);
    kas.arg("--config").arg(directory.join("kas.yaml")).arg("--token-file").arg(&token);
    kas.arg("--certificate-authority").arg(world.kas.authority().unwrap()).arg("--output").arg(&kubeconfig);
    let output = run(&mut kas, b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (world, namespace, kubeconfig)
}

/// Returns the Python interpreter with the client that `.ci/install-tools` installs.
fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    Some(target.join("clients/bin/python")).filter(|python| python.is_file())
}

#[test]
fn python_client_works_through_the_tunnel() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let Some(python) = python() else {
        skipped("there is no Kubernetes client for Python: run `make tools`");
        return;
    };
    let (world, namespace, kubeconfig) = prepare(&cluster, "python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/clients/python_client.py");
    let printed = [&cluster.kubeconfig, &kubeconfig].map(|kubeconfig| {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&python).args([
            path_argument(&script),
            path_argument(kubeconfig),
            &namespace.name,
            "server",
        ]);
        let output = run(command.env_remove("KUBECONFIG"), b"");
        let [printed, errors] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success(), "{printed}\n{errors}");
        printed
    });
    assert!(printed[0].contains("did port-forward"), "{}", printed[0]);
    assert_eq!(printed[1], printed[0]);
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

#[test]
fn kube_rs_works_through_the_tunnel() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (world, namespace, kubeconfig) = prepare(&cluster, "kube-rs");
    // The run without the tunnel shows that the cluster itself accepts these requests.
    for kubeconfig in [&cluster.kubeconfig, &kubeconfig] {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
            let config =
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
            let client = Client::try_from(config).unwrap();
            assert_eq!(client.apiserver_version().await.unwrap().major, "1");
            objects(&Api::namespaced(client.clone(), &namespace.name)).await;
            let pods = Api::namespaced(client, &namespace.name);
            logs(&pods).await;
            exec(&pods).await;
            forward(&pods).await;
        });
    }
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

async fn objects(api: &Api<ConfigMap>) {
    let start = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let watch =
        api.watch(&WatchParams::default().fields("metadata.name=crab").timeout(20), &start).await.unwrap();
    let crab = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "crab"}, "data": {"sky": "blau, grün"}});
    let crab: ConfigMap = serde_json::from_value(crab).unwrap();
    let created = api.create(&PostParams::default(), &crab).await.unwrap();
    assert_eq!(created.data.unwrap()["sky"], "blau, grün");
    let twice = api.create(&PostParams::default(), &crab).await.unwrap_err();
    assert!(matches!(&twice, Error::Api(status) if status.code == 409), "{twice}");
    let merge = Patch::Merge(json!({"data": {"sea": "blue"}}));
    let patched = api.patch("crab", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!(patched.data.unwrap().len(), 2);
    let names = api.list(&ListParams::default().fields("metadata.name=crab")).await.unwrap();
    assert_eq!(names.items.len(), 1);
    api.delete("crab", &DeleteParams::default()).await.unwrap();
    assert!(api.get_opt("crab").await.unwrap().is_none());

    pin_mut!(watch);
    let mut kinds = Vec::new();
    while let Some(event) = watch.try_next().await.unwrap() {
        kinds.push(match event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => break,
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(kinds, ["added", "modified"]);
}

async fn logs(api: &Api<Pod>) {
    let follow = LogParams { follow: true, ..LogParams::default() };
    let lines = api.log_stream("server", &follow).await.unwrap().lines();
    let first: Vec<_> = lines.take(2).try_collect().await.unwrap();
    assert_eq!(first, ["first", "ready"]);
}

async fn exec(api: &Api<Pod>) {
    let command = ["sh", "-c", "read line; echo heard $line; echo error >&2; exit 3"];
    let streams = AttachParams::default().stdin(true).stdout(true).stderr(true);
    let mut session = api.exec("server", command, &streams).await.unwrap();
    session.stdin().unwrap().write_all(b"some words\n").await.unwrap();
    let status = session.take_status().unwrap();
    let (mut output, mut errors) = (String::new(), String::new());
    session.stdout().unwrap().read_to_string(&mut output).await.unwrap();
    session.stderr().unwrap().read_to_string(&mut errors).await.unwrap();
    assert_eq!((&*output, &*errors), ("heard some words\n", "error\n"));
    let Some(Status { details: Some(details), .. }) = status.await else { panic!("no status") };
    assert_eq!(details.causes.unwrap()[0].message.as_deref(), Some("3"));
}

async fn forward(api: &Api<Pod>) {
    let mut forward = api.portforward("server", &[8080]).await.unwrap();
    let mut stream = forward.take_stream(8080).unwrap();
    stream.write_all(b"GET /page HTTP/1.0\r\nHost: pod\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.contains(" 200 OK") && response.ends_with("the page\n"), "{response}");
    drop(stream);
    forward.abort();
}

//! The API of the simulated cluster over TCP.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use testing::simulator::Simulator;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

const PODS: &str = "/api/v1/namespaces/demo/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/demo/configmaps";
const WEB: &str = "/apis/apps/v1/namespaces/demo/deployments/web";

#[tokio::test]
async fn objects_are_listed_and_selected() {
    let simulator = start();
    let list = get(&simulator, PODS).await;
    assert_eq!(list["kind"], "PodList");
    assert_eq!(names(&list).len(), 5);
    let selected = get(&simulator, &format!("{PODS}?labelSelector=app+in+(api)&limit=1")).await;
    assert_eq!(names(&selected).len(), 1);
    assert_eq!(selected["metadata"]["remainingItemCount"], 1);
    let token = selected["metadata"]["continue"].as_str().expect("more to come");
    let rest = get(&simulator, &format!("{PODS}?labelSelector=app=api&limit=1&continue={token}")).await;
    assert_ne!(names(&rest), names(&selected));
    assert_eq!(rest["metadata"]["continue"], Value::Null);
    let everywhere = get(&simulator, "/api/v1/pods?fieldSelector=metadata.namespace=kube-system").await;
    assert_eq!(names(&everywhere).len(), 2);
}

#[tokio::test]
async fn kubectl_gets_tables() {
    let simulator = start();
    let request =
        Request::get(PODS).header(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
    let table = json(send(&simulator, request, "").await).await;
    let columns: Vec<&Value> = table["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(columns, ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node"]);
    let row = &table["rows"][0];
    assert_eq!((&row["cells"][1], &row["cells"][2]), (&json!("1/1"), &json!("Running")));
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn watch_sends_changes_and_ends_with_the_client() {
    let simulator = start();
    let mut streams = simulator.open_streams();
    let revision = get(&simulator, CONFIG_MAPS).await["metadata"]["resourceVersion"].clone();
    let revision = revision.as_str().expect("a revision");
    let watch = format!("{CONFIG_MAPS}?watch=true&resourceVersion={revision}&labelSelector=watched");
    let mut watch = Lines::new(send(&simulator, Request::get(&watch), "").await);
    let created = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "generateName": "new-", "labels": { "watched": "" } },
    });
    let created = json(post(&simulator, CONFIG_MAPS, &created).await).await;
    let name = created["metadata"]["name"].as_str().expect("a name");
    assert_eq!(watch.next_object().await, json!({ "type": "ADDED", "object": created }));
    let path = format!("{CONFIG_MAPS}/{name}");
    patch(&simulator, &path, "application/merge-patch+json", r#"{"data":{"k":"v"}}"#).await;
    assert_eq!(watch.next_object().await["type"], "MODIFIED");
    // An object that no longer matches is deleted for this watch.
    patch(&simulator, &path, "application/merge-patch+json", r#"{"metadata":{"labels":null}}"#).await;
    assert_eq!(watch.next_object().await["type"], "DELETED");
    assert_eq!(*streams.borrow_and_update(), 1);
    drop(watch);
    within(streams.wait_for(|open| *open == 0)).await.expect("the simulator is there");
}

#[tokio::test]
async fn watch_sends_bookmark_and_refuses_expired_version() {
    let simulator = start();
    let watch =
        format!("{PODS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true&fieldSelector=metadata.name=x");
    let mut watch = Lines::new(send(&simulator, Request::get(&watch), "").await);
    assert_eq!(watch.next_object().await["type"], "BOOKMARK");
    assert_eq!(watch.next().await, None);
    let watch = format!("{PODS}?watch=true&resourceVersion=1000000");
    let mut watch = Lines::new(send(&simulator, Request::get(&watch), "").await);
    assert_eq!(watch.next_object().await["object"]["code"], 410);
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn applied_objects_are_created_and_merged() {
    let simulator = start();
    let path = format!("{CONFIG_MAPS}/applied");
    let yaml = "{apiVersion: v1, kind: ConfigMap, metadata: {name: applied}, data: {a: '1'}}";
    let created = patch(&simulator, &path, "application/apply-patch+yaml", yaml).await;
    assert_eq!(created.status(), StatusCode::CREATED);
    let stale = json(created).await;
    let more = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata:\n  b: '2'\n";
    let merged = patch(&simulator, &path, "application/apply-patch+yaml", more).await;
    assert_eq!(merged.status(), StatusCode::OK);
    let json_patch = r#"[{"op":"replace","path":"/data/a","value":"3"}]"#;
    patch(&simulator, &path, "application/json-patch+json", json_patch).await;
    assert_eq!(get(&simulator, &path).await["data"], json!({ "a": "3", "b": "2" }));
    // A replacement with an old resource version is a conflict.
    let put = Request::put(&path).header(CONTENT_TYPE, "application/json");
    let conflict = send(&simulator, put, stale.to_string()).await;
    assert_status(conflict, StatusCode::CONFLICT, "Conflict").await;
    let deleted = send(&simulator, Request::delete(&path), "").await;
    assert_eq!(json(deleted).await["status"], "Success");
    let gone = send(&simulator, Request::get(&path), "").await;
    assert_status(gone, StatusCode::NOT_FOUND, "NotFound").await;
}

#[tokio::test]
async fn scaling_and_changing_a_deployment_makes_pods() {
    let simulator = start();
    let before = names(&get(&simulator, &format!("{PODS}?labelSelector=app=web")).await);
    let scale = format!("{WEB}/scale");
    let scaled =
        patch(&simulator, &scale, "application/merge-patch+json", r#"{"spec":{"replicas":5}}"#).await;
    assert_eq!(json(scaled).await["spec"]["replicas"], 5);
    rolled_out(&simulator, 5).await;
    let scaled = names(&get(&simulator, &format!("{PODS}?labelSelector=app=web")).await);
    assert_eq!(scaled.len(), 5);
    assert!(before.iter().all(|name| scaled.contains(name)), "scaling keeps what runs");
    let image =
        r#"{"spec":{"replicas":2,"template":{"spec":{"containers":[{"name":"web","image":"new"}]}}}}"#;
    patch(&simulator, WEB, "application/strategic-merge-patch+json", image).await;
    rolled_out(&simulator, 2).await;
    let list = get(&simulator, &format!("{PODS}?labelSelector=app=web")).await;
    let after = names(&list);
    assert!(after.len() == 2 && !after.iter().any(|name| scaled.contains(name)), "{after:?}");
    assert_eq!(list["items"][0]["spec"]["containers"][0]["ports"][0]["containerPort"], 8080);
    // A watch that begins later misses a pod that is gone already.
    let watch = format!("{PODS}?watch=true&labelSelector=app=web");
    let mut watch = Lines::new(send(&simulator, Request::get(watch), "").await);
    send(&simulator, Request::delete(WEB), "").await;
    let mut left = 2;
    while left > 0 {
        left -= usize::from(watch.next_object().await["type"] == "DELETED");
    }
}

#[tokio::test]
async fn logs_are_followed() {
    let simulator = start();
    let pod = pod(&simulator).await;
    let mut lines =
        Lines::new(send(&simulator, Request::get(format!("{pod}/log?follow=true&tailLines=0")), "").await);
    let line = lines.next().await.expect("a line");
    assert!(line.contains("INFO simulated request served"), "{line}");
    let recent = send(&simulator, Request::get(format!("{pod}/log?tailLines=1")), "").await;
    assert_eq!(text(recent).await.lines().count(), 1);
    // The log of a deleted pod ends.
    send(&simulator, Request::delete(pod), "").await;
    while lines.next().await.is_some() {}
}

#[tokio::test]
async fn commands_are_executed_over_websocket() {
    let simulator = start();
    let echo = exec(&simulator, "v5.channel.k8s.io", "command=echo&command=hi", &[]).await;
    assert_eq!((echo.stdout.as_str(), &echo.status["status"]), ("hi\n", &json!("Success")));
    let script = "command=sh&command=-c&command=echo+oops+%3E%262;+exit+3";
    let exit = exec(&simulator, "v4.channel.k8s.io", script, &[]).await;
    assert_eq!((exit.stdout.as_str(), exit.stderr.as_str()), ("", "oops\n"));
    let cause = json!([{ "reason": "ExitCode", "message": "3" }]);
    assert_eq!(exit.status["details"]["causes"], cause);
    let input: [&[u8]; 3] = [b"\0one ", b"\0two", &[255, 0]];
    let cat = exec(&simulator, "v5.channel.k8s.io", "stdin=true&command=cat", &input).await;
    assert_eq!((cat.stdout.as_str(), &cat.status["status"]), ("one two", &json!("Success")));
    let keys: [&[u8]; 2] = [b"\x04{\"Width\":80,\"Height\":24}", b"\0exit 7\r"];
    let shell = exec(&simulator, "v5.channel.k8s.io", "stdin=true&tty=true&command=sh", &keys).await;
    assert!(shell.stdout.ends_with("$ exit 7\r\n"), "{}", shell.stdout);
    assert_eq!(shell.status["details"]["causes"][0]["message"], "7");
}

#[tokio::test]
async fn self_subject_review_names_the_caller() {
    let simulator = start();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let agent = json(post(&simulator, path, &review).await).await;
    assert_eq!(agent["status"]["userInfo"]["username"], "system:serviceaccount:simulated:agentk");
    let request = Request::post(path)
        .header(CONTENT_TYPE, "application/json")
        .header("Impersonate-User", "jane")
        .header("Impersonate-Group", "dev")
        .header("Impersonate-Extra-Team", "blue");
    let jane = json(send(&simulator, request, review.to_string()).await).await;
    let expected = json!({ "username": "jane", "groups": ["dev", "system:authenticated"], "extra": { "team": ["blue"] } });
    assert_eq!(jane["status"]["userInfo"], expected);
}

#[tokio::test]
async fn prometheus_evaluates_simple_expressions() {
    let simulator = start();
    assert_eq!(simulator.prometheus_url(), format!("http://{}/prometheus", simulator.address()));
    let sum = get(&simulator, "/prometheus/api/v1/query?query=1%2B1&time=5").await;
    assert_eq!(sum["data"], json!({ "resultType": "scalar", "result": [5.0, "2"] }));
    let form = Request::post("/prometheus/api/v1/query_range")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let form =
        send(&simulator, form, "query=up%7Bjob%3D%22simulated-web%22%7D&start=0&end=60&step=30s").await;
    let values = json!([[0.0, "1"], [30.0, "1"], [60.0, "1"]]);
    assert_eq!(json(form).await["data"]["result"][0]["values"], values);
    for (query, code, kind) in [
        ("query=", 400, "bad_data"),
        ("query=up&time=x", 400, "bad_data"),
        ("query=histogram_quantile(0.9,up)", 422, "execution"),
    ] {
        let refused = send(&simulator, Request::get(format!("/prometheus/api/v1/query?{query}")), "").await;
        assert_eq!(refused.status(), code, "{query}");
        assert_eq!(json(refused).await["errorType"], kind, "{query}");
    }
}

#[tokio::test]
async fn refusals_are_status_objects() {
    let simulator = start();
    let large = " ".repeat(3 * 1024 * 1024 + 1);
    let deep = format!("{}{}", "[".repeat(110), "]".repeat(110));
    let web = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"web-config"}}"#;
    let apply = "application/apply-patch+yaml";
    let item = format!("{CONFIG_MAPS}/web-config");
    for (method, path, content_type, body, code, reason) in [
        (Method::GET, "/nowhere", "", "", 404, "NotFound"),
        (Method::POST, "/version", "", "", 405, "MethodNotAllowed"),
        (Method::PUT, CONFIG_MAPS, "application/json", "{}", 405, "MethodNotAllowed"),
        (Method::POST, CONFIG_MAPS, "application/json", web, 409, "AlreadyExists"),
        (Method::POST, CONFIG_MAPS, "application/json", "{", 400, "BadRequest"),
        (Method::POST, CONFIG_MAPS, "application/json", &deep, 400, "BadRequest"),
        (Method::POST, CONFIG_MAPS, "application/json", &large, 413, "RequestEntityTooLarge"),
        (Method::POST, CONFIG_MAPS, "text/plain", web, 415, "UnsupportedMediaType"),
        (Method::PATCH, &item, apply, "a: [", 400, "BadRequest"),
        (Method::PATCH, &item, apply, "just text", 400, "BadRequest"),
        (Method::PATCH, &item, "application/merge-patch+json", "[]", 400, "BadRequest"),
        (Method::PATCH, &item, "application/json", "{}", 415, "UnsupportedMediaType"),
        (Method::PATCH, WEB, "application/merge-patch+json", r#"{"spec":{"replicas":-1}}"#, 422, "Invalid"),
        (Method::GET, &format!("{PODS}?labelSelector=a+b"), "", "", 400, "BadRequest"),
        (Method::DELETE, "/api/v1/namespaces/default", "", "", 403, "Forbidden"),
    ] {
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, content_type);
        let response = send(&simulator, request, body.to_owned()).await;
        let code = StatusCode::from_u16(code).expect("a status code");
        assert_status(response, code, reason).await;
    }
}

#[tokio::test]
async fn shutdown_ends_open_streams() {
    let simulator = start();
    let mut watch = Lines::new(send(&simulator, Request::get(format!("{PODS}?watch=true")), "").await);
    watch.next_object().await;
    let address = simulator.address();
    within(simulator.shutdown()).await;
    while watch.next().await.is_some() {}
    TcpStream::connect(address).await.expect_err("nobody listens any more");
}

fn start() -> Simulator {
    Simulator::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port")
}

/// Awaits a future with a timeout.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it takes too long")
}

async fn send(
    simulator: &Simulator,
    request: http::request::Builder,
    body: impl Into<Bytes>,
) -> Response<Incoming> {
    let stream = TcpStream::connect(simulator.address()).await.expect("it listens");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a connection");
    tokio::spawn(connection);
    let request = request.header("Host", "simulated").body(Full::new(body.into())).expect("a request");
    let response = within(sender.send_request(request)).await.expect("a response");
    assert_eq!(response.headers()["Kas-Simulator"], "this is not a real cluster");
    response
}

async fn get(simulator: &Simulator, path: &str) -> Value {
    let response = send(simulator, Request::get(path), "").await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    json(response).await
}

async fn post(simulator: &Simulator, path: &str, object: &Value) -> Response<Incoming> {
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    send(simulator, request, object.to_string()).await
}

async fn patch(simulator: &Simulator, path: &str, kind: &str, patch: &str) -> Response<Incoming> {
    let response = send(simulator, Request::patch(path).header(CONTENT_TYPE, kind), patch.to_owned()).await;
    assert!(response.status().is_success(), "{path}: {}", response.status());
    response
}

async fn text(response: Response<Incoming>) -> String {
    let body = within(response.into_body().collect()).await.expect("a body").to_bytes();
    String::from_utf8(body.into()).expect("text")
}

async fn json(response: Response<Incoming>) -> Value {
    serde_json::from_str(&text(response).await).expect("JSON")
}

async fn assert_status(response: Response<Incoming>, code: StatusCode, reason: &str) {
    assert_eq!(response.status(), code, "{reason}");
    let status = json(response).await;
    assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!(reason)));
    assert_eq!(status["code"], code.as_u16());
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().expect("a list");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
}

/// Returns the path of a pod.
async fn pod(simulator: &Simulator) -> String {
    format!("{PODS}/{}", names(&get(simulator, PODS).await)[0])
}

/// Waits until a rollout is complete, as `kubectl rollout status` does.
async fn rolled_out(simulator: &Simulator, replicas: u64) {
    let watch = "/apis/apps/v1/namespaces/demo/deployments?watch=true&fieldSelector=metadata.name=web";
    let mut watch = Lines::new(send(simulator, Request::get(watch), "").await);
    loop {
        let deployment = watch.next_object().await["object"].take();
        let status = &deployment["status"];
        let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
        if status["observedGeneration"] == deployment["metadata"]["generation"]
            && counts.iter().all(|count| status[count] == replicas)
        {
            return;
        }
    }
}

/// The lines of a body.
struct Lines {
    body: Incoming,
    read: Vec<u8>,
}

impl Lines {
    fn new(response: Response<Incoming>) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body(), read: Vec::new() }
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.drain(..=end).collect();
                return Some(String::from_utf8(line).expect("text"));
            }
            let frame = within(self.body.frame()).await?.expect("a whole body");
            self.read.extend(frame.into_data().expect("data"));
        }
    }

    async fn next_object(&mut self) -> Value {
        let line = self.next().await.expect("one more line");
        serde_json::from_str(&line).expect("JSON")
    }
}

struct Executed {
    stdout: String,
    stderr: String,
    status: Value,
}

async fn exec(simulator: &Simulator, protocol: &str, query: &str, input: &[&[u8]]) -> Executed {
    let path = pod(simulator).await;
    let address = simulator.address();
    let url = format!("ws://{address}{path}/exec?stdout=true&stderr=true&{query}");
    let mut request = url.into_client_request().expect("a URL");
    request.headers_mut().insert("Sec-WebSocket-Protocol", protocol.parse().expect("a header"));
    let stream = TcpStream::connect(address).await.expect("it listens");
    let (mut socket, response) =
        within(tokio_tungstenite::client_async(request, stream)).await.expect("a WebSocket");
    assert_eq!(response.headers()["Sec-WebSocket-Protocol"], protocol);
    for message in input {
        socket.send(Message::Binary(Bytes::copy_from_slice(message))).await.expect("sent");
    }
    let mut channels = [const { String::new() }; 4];
    while let Some(message) = within(socket.next()).await {
        if let Message::Binary(data) = message.expect("a message") {
            channels[usize::from(data[0])].push_str(str::from_utf8(&data[1..]).expect("text"));
        }
    }
    let [_, stdout, stderr, status] = channels;
    Executed { stdout, stderr, status: serde_json::from_str(&status).expect("a status") }
}

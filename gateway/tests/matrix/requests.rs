//! The request of a case: sent once, or held open while something happens.

use std::{
    fs,
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use proto::audit::EVENTS_PATH;

use super::{
    expectations::NO_SERVICE,
    fixtures::{LARGE, OBJECTS},
    support::{HttpResponse, Kubectl, Process, curl, eventually, pod_manifest},
    values::{Event, Request, Size},
    world::World,
};

/// The parameters of the audit log that kas applies, and that agentk does not know.
const AUDIT_FILTERS: &str = "project=group/project&environment=production&commit=714a629c";

/// An answer that a caller got in place of the expected one.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The status, if the client shows it.
    status: Option<u16>,
    kind: Option<String>,
    text: String,
}

impl Failure {
    fn of_response(response: &HttpResponse) -> Self {
        let kind = response.header("kas-error").map(str::to_owned);
        let text = response.text().chars().take(500).collect::<String>() + &response.error;
        Self { status: Some(response.status), kind, text }
    }

    fn of_text(text: impl Into<String>) -> Self {
        Self { status: None, kind: None, text: text.into() }
    }

    /// Asserts that it is a refusal with this status, this kind and a sentence with this part.
    pub(crate) fn assert(&self, status: u16, kind: Option<&str>, sentence: &str) {
        assert!(self.status.is_none_or(|actual| actual == status), "{status} is expected: {self:?}");
        if self.status.is_some() {
            assert_eq!(self.kind.as_deref(), kind, "{self:?}");
        }
        assert!(self.text.contains(sentence), "{sentence:?} is not in {self:?}");
    }

    /// Returns whether it is a refusal with this status or this sentence.
    pub(crate) fn is(&self, status: u16, sentence: &str) -> bool {
        self.status.is_none_or(|actual| actual == status) && self.text.contains(sentence)
    }
}

/// Sends the request of a case once, and checks its answer.
pub(crate) fn send(world: &World) -> Result<(), Failure> {
    if let Some(running) = Running::start(world) {
        return running?.finish();
    }
    let (client, place, size) = (&world.client, &world.place, world.case.size);
    match world.case.request {
        Request::Get => {
            let response = client.cluster("/version", &[]);
            expect(&response, 200, response.body == curl(&[&place.url("/version")]).body)
        }
        Request::List => {
            let response = client.cluster(&place.list(), &[]);
            let objects = response.text().matches("\"uid\":").count();
            expect(&response, 200, objects == OBJECTS && response.body.len() > LARGE)
        }
        Request::Post => post(world),
        Request::PodProxy => {
            let path = format!("/api/v1/namespaces/{}/pods/shell:8080/proxy", place.namespace.name);
            let response = client.cluster(&path, &["--location"]);
            expect(&response, 301, response.text().ends_with("index\n"))
        }
        Request::PromQl => {
            let response = client.service("/prometheus/api/v1/query?query=vector(7)");
            expect(&response, 200, response.text().contains(r#","7"]"#))
        }
        Request::Graph => {
            let response = client.service("/graph/v1/status");
            expect(&response, 200, response.text().starts_with('{'))
        }
        Request::GitOps => {
            let response = client.service("/gitops/v1/projects");
            expect(&response, 200, response.text().contains("projects"))
        }
        Request::Alerts => {
            let response = client.service("/alerts/v1/alerts");
            expect(&response, 200, response.text().contains("alerts"))
        }
        Request::Events => {
            let response = client.service("/events/v1/events");
            expect(&response, 200, response.text().contains("events"))
        }
        Request::Audit => {
            let response = client.service(&format!("/audit{EVENTS_PATH}?{AUDIT_FILTERS}"));
            expect(&response, 200, response.text().contains("\"type\":\"end\""))
        }
        Request::Agents => {
            let response = client.list("/agents");
            expect(&response, 200, response.text().contains("\"agents\":["))?;
            ["fleet", "applications", "components"].iter().try_for_each(|list| all_clusters(world, list))
        }
        Request::Environments => {
            let response = client.list("/web/v1/environments");
            expect(&response, 200, response.text().contains("\"environments\":["))
        }
        Request::ExecWebSocket => exec_in_page(world, size),
        Request::Watch
        | Request::Logs
        | Request::ExecSpdy
        | Request::ForwardWebSocket
        | Request::ForwardSpdy => unreachable!("it is held open"),
    }
}

/// Sends a request of the same caller to a namespace that does not have the label of the cases. The answer is returned as a refusal.
pub(crate) fn request_unlabelled_namespace(world: &World) -> Failure {
    Failure::of_response(&world.client.cluster("/api/v1/namespaces/default/configmaps", &[]))
}

/// Requests a list of all clusters, in which that of the agent has answered, or says why it cannot.
fn all_clusters(world: &World, list: &str) -> Result<(), Failure> {
    let request = || world.client.list(&format!("/agents/{list}"));
    let mut response = request();
    // The list waits for no agent that goes over to another replica at this moment.
    if world.case.event == Event::KasStops {
        eventually("the agent is connected again", || {
            let is_away = response.text().contains("\"connected\":0");
            if is_away {
                response = request();
            }
            !is_away
        });
    }
    let part = if world.case.has_services() { "\"answered\":1}" } else { NO_SERVICE };
    expect(&response, 200, response.text().contains(part))
}

fn expect(response: &HttpResponse, status: u16, is_right: bool) -> Result<(), Failure> {
    if response.status == status && is_right { Ok(()) } else { Err(Failure::of_response(response)) }
}

/// Creates an object. The API server refuses one of 12 MiB, before it has all of it.
fn post(world: &World) -> Result<(), Failure> {
    let (value, status) = match world.case.size {
        Size::Up => ("x".repeat(LARGE), 413),
        _ => ("x".to_owned(), 201),
    };
    let object = serde_json::json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"generateName": "posted-", "labels": {"matrix": "post"}},
        "data": {"key": value},
    });
    let file = new_file(world, object.to_string().as_bytes());
    if let Some(kubectl) = world.client.kubectl(&world.place.namespace.name) {
        let result = kubectl.run(&["create", "--validate=false", "--filename", file.to_str().unwrap()]);
        let is_right = match status {
            201 => result.code == 0,
            _ => result.stderr.contains("Request entity too large"),
        };
        return if is_right { Ok(()) } else { Err(Failure::of_text(result.stderr)) };
    }
    let data = format!("@{}", file.display());
    // Over HTTP/2, curl 7 drops an answer that comes together with its RST_STREAM, which ends an upload.
    let arguments = ["--http1.1", "--header", "Content-Type: application/json", "--data-binary", &data];
    let response = world.client.cluster(&world.place.config_maps(), &arguments);
    expect(&response, status, true)
}

fn new_file(world: &World, content: &[u8]) -> PathBuf {
    let file = world.directory.path().join(new_name("file"));
    fs::write(&file, content).unwrap();
    file
}

/// Returns a name that nothing else has.
fn new_name(prefix: &str) -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    format!("{prefix}-{:08x}-{}", rand::random::<u32>(), NUMBER.fetch_add(1, Relaxed))
}

fn exec_in_page(world: &World, size: Size) -> Result<(), Failure> {
    let (script, input, expected) = match size {
        Size::Small => ("echo small", 0, 6),
        Size::Down => ("cat /www/large", 0, LARGE),
        Size::Up => ("wc -c", LARGE, 9),
    };
    let command: String =
        ["sh", "-c", script].iter().map(|word| format!("&command={}", word.replace(' ', "%20"))).collect();
    let path = format!(
        "/api/v1/namespaces/{}/pods/shell/exec?stdin={}&stdout=true&stderr=true{command}",
        world.place.namespace.name,
        input > 0,
    );
    let output = world.client.exec(&path, &vec![b'x'; input], expected).map_err(Failure::of_text)?;
    if output.len() == expected {
        return Ok(());
    }
    let begin: String = String::from_utf8_lossy(&output).chars().take(100).collect();
    Err(Failure::of_text(format!("{} bytes in place of {expected}: {begin}", output.len())))
}

/// Starts a watch of the objects of [`create_marked`].
fn follow_marked(world: &World, name: &str) -> Process {
    let path = format!("{}?watch=true&labelSelector=case%3D{name}", world.place.config_maps());
    world.client.follow(&path)
}

/// A request that goes on until `finish`.
pub(crate) struct Running<'a> {
    world: &'a World,
    process: Process,
    /// The object or the file that ends it.
    name: String,
}

impl<'a> Running<'a> {
    /// Starts the request of a case and waits until its answer has begun. `None` if it is a request that ends by itself.
    pub(crate) fn start(world: &'a World) -> Option<Result<Self, Failure>> {
        let name = new_name("case");
        let place = &world.place;
        let kubectl = world.client.kubectl(&place.namespace.name);
        let (process, begun) = match world.case.request {
            Request::Watch => {
                create_marked(world, &name, "begun");
                (follow_marked(world, &name), "\"ADDED\"")
            }
            Request::Logs => {
                let script = "echo begun; while ! [ -e /tmp/go ]; do sleep 0.1; done; echo ended";
                place.kubectl().ok_with_stdin(&["create", "--filename=-"], &pod_manifest(&name, script));
                let wait = ["wait", "--for=condition=Ready", "--timeout=40s", &format!("pod/{name}")];
                place.kubectl().ok(&wait);
                let process = match &kubectl {
                    Some(kubectl) => kubectl.start(&["logs", "--follow", &name]),
                    None => world.client.follow(&format!(
                        "/api/v1/namespaces/{}/pods/{name}/log?follow=true",
                        place.namespace.name
                    )),
                };
                (process, "begun")
            }
            Request::ExecWebSocket | Request::ExecSpdy => (exec(world, &kubectl?, &name), "begun"),
            Request::ForwardWebSocket | Request::ForwardSpdy => {
                let kubectl = protocol(world, kubectl?);
                (kubectl.start(&["port-forward", "-v=8", "pod/shell", ":8080"]), "Forwarding from 127.0.0.1:")
            }
            _ => return None,
        };
        let mut running = Self { world, process, name };
        Some(running.wait_for(begun).map(|()| running))
    }

    /// Waits for a part of the output. The error is all of the output of a process that has ended without it.
    fn wait_for(&mut self, text: &str) -> Result<(), Failure> {
        let mut ended = false;
        eventually("the answer begins", || {
            ended = !self.process.runs();
            ended || self.process.printed().contains(text)
        });
        if ended && !self.process.printed().contains(text) {
            self.process.exit_code();
            if !self.process.printed().contains(text) {
                return Err(Failure::of_text(self.process.printed()));
            }
        }
        Ok(())
    }

    /// Waits for a part of a watch, which is sent again once a process that stops has ended it. One that is cut is an error.
    fn watch_for(&mut self, text: &str) -> Result<(), Failure> {
        loop {
            let found = self.wait_for(text);
            let is_complete = found.is_err() && self.process.exit_code() == 0;
            if !is_complete {
                return found;
            }
            self.process = follow_marked(self.world, &self.name);
        }
    }

    /// Ends the request, and checks the rest of its answer.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        let place = &self.world.place;
        match self.world.case.request {
            Request::Watch => {
                create_marked(self.world, &self.name, "ended");
                self.watch_for("\"ended-")
            }
            Request::Logs => {
                place.kubectl().ok(&["exec", &self.name, "--", "touch", "/tmp/go"]);
                self.wait_for("ended")?;
                let code = self.process.exit_code();
                place.kubectl().ok(&["delete", "pod", &self.name, "--wait=false"]);
                if code == 0 { Ok(()) } else { Err(Failure::of_text(self.process.printed())) }
            }
            Request::ForwardWebSocket | Request::ForwardSpdy => {
                let result = self.use_forward();
                self.process.terminate();
                result.and_then(|()| self.check_protocol())
            }
            _ => {
                place.kubectl().ok(&["exec", "shell", "--", "touch", &format!("/tmp/{}", self.name)]);
                let code = self.process.exit_code();
                let printed = self.process.printed();
                let last = printed.lines().rfind(|line| line.starts_with("result ")).unwrap_or_default();
                let (length, expected) = match self.world.case.size {
                    Size::Small => (last.len(), "result small".len()),
                    Size::Down => (last.len(), "result ".len() + LARGE),
                    Size::Up => (last.trim_start_matches("result ").trim().parse().unwrap_or(0), LARGE),
                };
                if code != 0 || length != expected {
                    let text: String = printed.chars().take(2000).collect();
                    return Err(Failure::of_text(format!(
                        "exit code {code}, {length} of {expected}: {text}"
                    )));
                }
                self.check_protocol()
            }
        }
    }

    /// kubectl falls back to SPDY without a word.
    fn check_protocol(&self) -> Result<(), Failure> {
        let printed = self.process.printed();
        let websocket = printed.lines().any(|line| line.contains("Upgrade: websocket"));
        let expected = matches!(self.world.case.request, Request::ExecWebSocket | Request::ForwardWebSocket);
        if websocket == expected { Ok(()) } else { Err(Failure::of_text(format!("WebSocket: {websocket}"))) }
    }

    /// Requests a page through the forwarded port.
    fn use_forward(&self) -> Result<(), Failure> {
        let line = self.process.line("its address", |line| line.starts_with("Forwarding from 127.0.0.1:"));
        let port = line.split([':', ' ']).nth(3).unwrap();
        let url = |page: &str| format!("http://127.0.0.1:{port}/{page}");
        let (response, length) = match self.world.case.size {
            Size::Small => (curl(&[&url("small")]), 6),
            Size::Down => (curl(&[&url("large")]), LARGE),
            Size::Up => {
                let data = format!("@{}", new_file(self.world, &vec![b'x'; LARGE]).display());
                (curl(&["--data-binary", &data, &url("cgi-bin/count")]), 9)
            }
        };
        expect(&response, 200, response.body.len() == length)
    }

    /// Waits until kas or agentk has ended it.
    pub(crate) fn wait_until_ended(mut self) {
        match self.world.case.request {
            // kubectl listens on, and says at the next use that the connection is lost.
            Request::ForwardWebSocket | Request::ForwardSpdy => {
                eventually("the forwarded port is closed", || {
                    self.use_forward().is_err() || !self.process.runs()
                });
            }
            _ => {
                self.process.exit_code();
            }
        }
    }
}

/// Creates an object that the watch of a case sees.
fn create_marked(world: &World, name: &str, prefix: &str) {
    let object = serde_json::json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": format!("{prefix}-{name}"), "labels": {"case": name}},
    });
    world.place.kubectl().ok_with_stdin(&["create", "--filename=-"], &object.to_string());
}

/// Starts a command in the pod that waits for a file.
fn exec(world: &World, kubectl: &Kubectl, name: &str) -> Process {
    let wait = format!("echo begun; while ! [ -e /tmp/{name} ]; do sleep 0.1; done; printf 'result '");
    let script = match world.case.size {
        Size::Small => format!("{wait}; echo small"),
        Size::Down => format!("{wait}; cat /www/large; echo"),
        Size::Up => format!("{wait}; wc -c"),
    };
    let mut arguments = vec!["exec", "-v=8"];
    if world.case.size == Size::Up {
        arguments.push("--stdin");
    }
    arguments.extend(["shell", "--", "sh", "-c", &script]);
    let mut command = protocol(world, kubectl.clone()).command(&arguments);
    match world.case.size {
        Size::Up => command.stdin(fs::File::open(new_file(world, &vec![b'x'; LARGE])).unwrap()),
        _ => command.stdin(Stdio::null()),
    };
    Process::start("kubectl exec", &mut command)
}

/// Returns kubectl that uses the protocol of the case.
fn protocol(world: &World, kubectl: Kubectl) -> Kubectl {
    let websocket = matches!(world.case.request, Request::ExecWebSocket | Request::ForwardWebSocket);
    let value = if websocket { "true" } else { "false" };
    ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"]
        .into_iter()
        .fold(kubectl, |kubectl, variable| kubectl.with_variable(variable, value))
}

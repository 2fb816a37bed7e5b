//! exec, attach, cp and port-forward over WebSocket, and over SPDY where WebSocket is off or refused.
//!
//! kubectl without the tunnel is the reference for output, exit code and protocol: kubectl falls back to SPDY by itself, so
//! that a WebSocket that fails in the tunnel would not be noticed otherwise.

use std::{fs, path::Path};

use testing::skip::skipped_by_version;

use crate::{
    support::{
        Cluster, Installation, Kubectl, KubectlVersion, Namespace, assert_same_output, curl, path_argument,
    },
    upgrades::{INPUTS, pod_that_reads},
};

/// The variables of kubectl that switch WebSocket on and off.
const SWITCHES: [&str; 2] = ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"];
/// The subprotocol of exec with a half-close of the standard input.
const V5: &str = "websocket v5.channel.k8s.io";
/// WebSocket requests are GET, whose verb is `get`, and those of SPDY are POST.
const NO_WEBSOCKET: &str = "rules:
- {name: no-websocket, action: deny, services: [kubernetes], verbs: [get], resources: [pods/exec, pods/attach, pods/portforward]}
- {name: all, action: allow, services: ['*']}
";

/// kubectl directly and through the tunnel, in a namespace with the pod `shell`, which serves a page at port 8080.
struct Upgrades {
    world: Installation,
    namespace: Namespace,
}

impl Upgrades {
    fn start(cluster: &Cluster, topic: &str) -> Self {
        let world = Installation::with_cluster(&cluster.kubeconfig);
        let namespace = cluster.namespace(topic);
        namespace.pod("shell", "mkdir /www; seq 50000 >/www/page; exec httpd -f -p 8080 -h /www");
        Self { world, namespace }
    }

    fn direct(&self, websocket: bool) -> Kubectl {
        switched(&self.namespace.kubectl, websocket)
    }

    fn through(&self, websocket: bool) -> Kubectl {
        switched(&self.world.kubectl().in_namespace(&self.namespace.name), websocket)
    }

    /// Asserts that both have the same output and exit code. Returns the protocols of exec, attach, cp and port-forward
    /// of each.
    fn compare(&self, direct: &Kubectl, through: &Kubectl, mode: &str) -> [Vec<String>; 2] {
        let script = "read line; wc -c; seq 20000; echo end >&2; exit 6";
        for input in INPUTS {
            let exec = ["exec", "--stdin", "shell", "--", "sh", "-c", script];
            assert_eq!(assert_same_output(direct, &[through], &exec, input), 6, "{mode}");
        }
        [direct, through].map(|kubectl| {
            let mut negotiated = negotiated(kubectl, &["exec", "shell", "--", "true"], "");
            negotiated.extend(self.attach(kubectl, mode));
            negotiated.extend(self.copy(kubectl, mode));
            negotiated.extend(forward(kubectl));
            negotiated
        })
    }

    fn attach(&self, kubectl: &Kubectl, mode: &str) -> Vec<String> {
        let pod = format!("{mode}-{}", kubectl.name);
        self.namespace.kubectl.ok_with_stdin(&["create", "--filename=-"], &pod_that_reads(&pod));
        self.namespace.kubectl.ok(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=40s"]);
        let attach = ["attach", "--stdin", "-v=8", &pod];
        let attached = kubectl.run_with_stdin(&attach, b"some words\n");
        assert_eq!((attached.code, &*attached.text()), (0, "heard some words\n"), "{}", attached.stderr);
        protocols(&attached.stderr)
    }

    fn copy(&self, kubectl: &Kubectl, mode: &str) -> Vec<String> {
        let (sent, back) = (self.file("sent"), self.file("back"));
        fs::write(&sent, "line after line\n".repeat(100_000)).unwrap();
        let there = format!("shell:/tmp/{mode}-{}", kubectl.name);
        let mut negotiated = negotiated(kubectl, &["cp", path_argument(&sent), &there], "");
        negotiated.extend(self::negotiated(kubectl, &["cp", &there, path_argument(&back)], ""));
        assert!(fs::read(&back).unwrap() == fs::read(&sent).unwrap(), "{mode} ({})", kubectl.name);
        negotiated
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.world.directory()).join(name)
    }
}

fn switched(kubectl: &Kubectl, websocket: bool) -> Kubectl {
    let value = if websocket { "true" } else { "false" };
    SWITCHES.into_iter().fold(kubectl.clone(), |kubectl, name| kubectl.with_variable(name, value))
}

/// Runs a command that must succeed, and returns the protocols of its upgrades.
fn negotiated(kubectl: &Kubectl, arguments: &[&str], stdin: &str) -> Vec<String> {
    let (verb, rest) = arguments.split_first().unwrap();
    let output = kubectl.run_with_stdin(&[&[*verb, "-v=8"], rest].concat(), stdin.as_bytes());
    assert_eq!(output.code, 0, "{arguments:?} ({}): {}", kubectl.name, output.stderr);
    protocols(&output.stderr)
}

/// Requests the page through a port-forward.
fn forward(kubectl: &Kubectl) -> Vec<String> {
    let mut forward = kubectl.start(&["port-forward", "-v=8", "pod/shell", ":8080"]);
    let line = forward.line("Forwarding", |line| line.starts_with("Forwarding from 127.0.0.1:"));
    let page = curl(&[&format!("http://127.0.0.1:{}/page", line.split([':', ' ']).nth(3).unwrap())]);
    assert_eq!((page.status, page.body.len()), (200, 288_894), "{}", page.error);
    forward.terminate();
    forward.exit_code();
    protocols(&forward.printed())
}

/// Returns the protocol and the subprotocol of each upgrade in a log of kubectl with `-v=8`.
fn protocols(log: &str) -> Vec<String> {
    let accepted = log.split("101 Switching Protocols").skip(1);
    let protocol = |head: &str| {
        let field =
            |name: &str| head.lines().find_map(|line| Some(line.split_once(name)?.1)).unwrap_or_default();
        match field("Upgrade: ") {
            "websocket" => format!("websocket {}", field("Sec-Websocket-Protocol: ")),
            other => format!("{other} {}", field("X-Stream-Protocol-Version: ")),
        }
    };
    accepted.map(protocol).collect()
}

#[test]
fn upgrades_have_the_protocol_of_the_cluster() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let upgrades = Upgrades::start(&cluster, "protocols");
    for (mode, websocket) in [("websocket", true), ("spdy", false)] {
        let (direct, through) = (upgrades.direct(websocket), upgrades.through(websocket));
        let [direct, through] = upgrades.compare(&direct, &through, mode);
        assert!(direct.len() >= 5, "{mode}: {direct:?}");
        assert_eq!(through, direct, "{mode}");
        match websocket {
            true if !direct.contains(&V5.to_owned()) => {
                skipped_by_version(&format!("WebSocket: this is {direct:?}"))
            }
            true => {}
            false => assert!(direct.iter().all(|protocol| protocol.starts_with("SPDY/3.1 ")), "{direct:?}"),
        }
    }
}

#[test]
fn refused_websocket_falls_back_to_spdy() {
    let Some(cluster) = Cluster::or_skip() else { return };
    if !KubectlVersion::WEBSOCKET_PORT_FORWARD.or_skip("the fallback of port-forward to SPDY") {
        return;
    }
    let mut upgrades = Upgrades::start(&cluster, "fallback");
    upgrades.world.put_policy(NO_WEBSOCKET);
    let (direct, through) = (upgrades.direct(false), upgrades.through(true));
    let [direct, through] = upgrades.compare(&direct, &through, "fallback");
    assert_eq!(through, direct, "the protocols are those without WebSocket");
    let metrics = upgrades.world.agent.get("/metrics").text();
    let refused = metrics.lines().find(|line| line.contains("rule=\"no-websocket\"")).unwrap();
    assert!(!refused.ends_with(" 0"), "WebSocket is tried first: {refused}");
}

//! Requests that become raw streams: exec, attach, cp, port-forward.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};

use crate::support::{
    AGENT, Cluster, Installation, Kubectl, Namespace, assert_same_output, curl, eventually, normalize,
    path_argument, pod_manifest,
};

const IDLE: &str = "exec sleep 1000";

/// Inputs for a script that begins with `read line` and then reads to the end, which comes at once or after more bytes.
///
/// No input ends before its first line was read. The end of an input without bytes is sometimes lost inside the pod, also
/// without the tunnel: containerd's shim opens its end of the input's FIFO in the background. If all writers have closed the
/// FIFO before that, the shim waits for another writer forever, and the program for the end of its input.
pub(crate) const INPUTS: [&str; 2] = ["line\n", "line\nmore words\n"];

/// A script that prints its input after the end of it.
///
/// kubectl sends the end of its input on its own. If that is on its way when the container has ended, the API server or the kubelet
/// cannot forward it, and then drops the output that it has not forwarded yet, also without the tunnel.
const READ_ALL: &str = "words=$(cat); echo heard $words";

fn with_shell_pod(cluster: &Cluster, topic: &str) -> (Installation, Namespace, [Kubectl; 2]) {
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace(topic);
    namespace.pod("shell", IDLE);
    let through =
        [world.kubectl(), world.kubectl_in_ci()].map(|kubectl| kubectl.in_namespace(&namespace.name));
    (world, namespace, through)
}

fn random(bytes: usize) -> Vec<u8> {
    let mut random = vec![0; bytes];
    rand::fill(&mut random[..]);
    random
}

#[test]
fn exec_returns_output_and_exit_code() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (world, namespace, [agents, gitlab]) = with_shell_pod(&cluster, "exec");
    let same = |arguments: &[&str], stdin: &str| {
        assert_same_output(&namespace.kubectl, &[&agents, &gitlab], arguments, stdin);
    };
    same(&["exec", "shell", "--", "sh", "-c", "echo out; echo error >&2"], "");
    same(&["exec", "shell", "--", "sh", "-c", "echo out; exit 3"], "");
    same(&["exec", "shell", "--", "no-such-program"], "");
    same(&["exec", "shell", "--container=none", "--", "true"], "");
    same(&["exec", "--stdin", "shell", "--", "sh"], "echo $((6 * 7))\nexit 9\n");
    assert_eq!(agents.run(&["exec", "shell", "--", "sh", "-c", "exit 3"]).code, 3);
    assert_eq!(world.in_flight(), 0.0);
}

#[test]
fn exec_echoes_a_megabyte_unchanged() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (_world, namespace, [agents, gitlab]) = with_shell_pod(&cluster, "megabyte");
    let sent = random(1 << 20);
    for kubectl in [&namespace.kubectl, &agents, &gitlab] {
        let output = kubectl.run_with_stdin(&["exec", "--stdin", "shell", "--", "cat"], &sent);
        assert_eq!((output.code, &*output.stderr), (0, ""), "{}", kubectl.name);
        assert!(output.stdout == sent, "{}: {} bytes came back", kubectl.name, output.stdout.len());
    }
}

#[test]
fn exec_with_tty_allocates_a_terminal() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (_world, namespace, [agents, _]) = with_shell_pod(&cluster, "terminal");
    let script = "tty; echo width; sleep 1; stty size; exit 4";
    let [direct, through] = [&namespace.kubectl, &agents].map(|kubectl| {
        let output =
            kubectl.run_in_terminal(&["exec", "--stdin", "--tty", "shell", "--", "sh", "-c", script], "");
        assert!(output.text().contains("/dev/pts/"), "{output:?}");
        // `script` writes `^@` at the end of its own input, at an unpredictable position.
        (output.code, normalize(&output.text().replace("^@", ""), &namespace.name))
    });
    assert!(direct.1.contains("33 101"), "{direct:?}");
    assert_eq!(direct.0, 4);
    assert_eq!(through, direct);
}

#[test]
fn cp_copies_files_both_ways() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (world, namespace, [agents, gitlab]) = with_shell_pod(&cluster, "copy");
    let sent = world.directory().join("sent");
    fs::write(&sent, random(3 << 20)).unwrap();
    let sum = |path: &std::path::Path| format!("{:x?}", Sha256::digest(fs::read(path).unwrap()));
    for (number, kubectl) in [&agents, &gitlab].into_iter().enumerate() {
        let there = format!("shell:/tmp/there-{number}");
        let back = world.directory().join(format!("back-{number}"));
        kubectl.ok(&["cp", path_argument(&sent), &there]);
        namespace.kubectl.ok(&["exec", "shell", "--", "test", "-s", &there["shell:".len()..]]);
        kubectl.ok(&["cp", &there, path_argument(&back)]);
        assert_eq!(sum(&back), sum(&sent), "{}", kubectl.name);
        // kubectl exits once it has read the empty archive, and rarely later, with the error and the exit code of tar.
        let none = world.directory().join(format!("none-{number}"));
        let missing = kubectl.run(&["cp", "shell:/no/such/file", path_argument(&none)]);
        assert!(matches!(missing.code, 0 | 1) && !none.exists(), "{} ({missing:?})", kubectl.name);
    }
}

#[test]
fn port_forward_serves_concurrent_connections() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("forward");
    let page = "mkdir /www; head -c 300000 /dev/urandom > /www/page; exec httpd -f -p 8080 -h /www";
    namespace.pod("web", page);
    let read = ["exec", "web", "--", "cat", "/www/page"];
    let expected = namespace.kubectl.run(&read).stdout;
    for kubectl in [world.kubectl(), world.kubectl_in_ci()] {
        let mut forward = kubectl.in_namespace(&namespace.name).start(&["port-forward", "pod/web", ":8080"]);
        let line = forward.line("Forwarding", |line| line.starts_with("Forwarding from 127.0.0.1:"));
        let port = line.split([':', ' ']).nth(3).unwrap();
        let url = format!("http://127.0.0.1:{port}/page");
        thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| curl(&[&url]))).collect();
            for response in all {
                let response = response.join().unwrap();
                assert_eq!(
                    (response.status, response.body.len()),
                    (200, expected.len()),
                    "{}",
                    response.error
                );
                assert!(response.body == expected);
            }
        });
        assert_eq!(curl(&[&format!("http://127.0.0.1:{port}/none")]).status, 404);
        forward.terminate();
        forward.exit_code();
    }
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

#[test]
fn run_and_attach_reach_the_pod() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let (_world, namespace, [agents, _]) = with_shell_pod(&cluster, "attach");
    namespace.kubectl.ok_with_stdin(&["create", "--filename=-"], &pod_that_reads("echoer"));
    namespace.kubectl.ok(&["wait", "--for=condition=Ready", "pod/echoer", "--timeout=40s"]);
    let attached = agents.run_with_stdin(&["attach", "--stdin", "echoer"], b"some words\n");
    assert_eq!((attached.code, attached.text()), (0, "heard some words\n".to_owned()), "{}", attached.stderr);

    let script = format!("{READ_ALL}; exit 5");
    let run = ["run", "runner", "--image=busybox:1.35", "--image-pull-policy=Never", "--restart=Never"];
    let rest =
        ["--stdin", "--rm", "--quiet", "--pod-running-timeout=40s", "--command", "--", "sh", "-c", &script];
    let ran = agents.run_with_stdin(&[&run[..], &rest].concat(), b"more words\n");
    assert_eq!((ran.code, ran.text()), (5, "heard more words\n".to_owned()), "{}", ran.stderr);
}

pub(crate) fn pod_that_reads(name: &str) -> String {
    let mut manifest: serde_json::Value = serde_json::from_str(&pod_manifest(name, READ_ALL)).unwrap();
    let container = &mut manifest["spec"]["containers"][0];
    container["stdin"] = true.into();
    container["stdinOnce"] = true.into();
    manifest.to_string()
}

/// kubectl requests `v5.channel.k8s.io`, which old clusters do not support; other clients request v4.
#[test]
fn exec_over_websocket_separates_channels() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::start(&cluster.kubeconfig, |_, _| {});
    let namespace = cluster.namespace("websocket");
    namespace.pod("shell", IDLE);
    let (token, name) = (world.tokens.ops.expose_secret(), &namespace.name);
    let mut connection = TcpStream::connect(world.kas.public).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let key = STANDARD.encode(random(16));
    let request = format!(
        "GET /agents/{AGENT}/kubernetes/api/v1/namespaces/{name}/pods/shell/exec?stdout=1&stderr=1\
         &command=sh&command=-c&command=echo%20out%3Becho%20error%3E%262%3Bexit%203 HTTP/1.1\r\n\
         Host: kas\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    connection.read_to_end(&mut response).unwrap();

    let end = response.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&response[..end]).to_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("v4.channel.k8s.io"), "{head}");
    let channels = channels(&response[end..]);
    assert_eq!(&*channels[1], b"out\n");
    assert_eq!(&*channels[2], b"error\n");
    let status: serde_json::Value = serde_json::from_slice(&channels[3]).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "3", "{status}");
}

/// Returns the data of each channel from unmasked frames (RFC 6455 section 5.2).
fn channels(mut frames: &[u8]) -> [Vec<u8>; 4] {
    let mut channels = [const { Vec::new() }; 4];
    while let [first, length, rest @ ..] = frames {
        let (length, rest) = match length {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            length => (usize::from(*length), rest),
        };
        let (payload, rest) = rest.split_at(length);
        if let (true, [channel, data @ ..]) = (matches!(first & 15, 1 | 2), payload) {
            channels[usize::from(*channel)].extend_from_slice(data);
        }
        frames = rest;
    }
    channels
}

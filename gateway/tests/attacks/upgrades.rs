//! Upgrades through kas and agentk to a scripted API server.

use std::{sync::Arc, time::Duration};

use agentk_core::{
    Services,
    cluster::{Cluster, KubeconfigOptions},
    services::KubernetesService,
};
use kas_testing::{
    server::{self, SOON},
    world::World,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};

use crate::http1::{self, status};

const EXEC: &str = "/kubernetes/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true&stdout=true";
const SPDY: &str =
    "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";
const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                         Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n";

/// Returns a kas whose agent has an API server that handles each connection with `serve`.
async fn world<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> (World, impl Sized)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (url, serving) = server::listen(serve).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let text = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: '{url}'}}}}], users: [{{name: u, user: {{token: agentks-own}}}}]}}"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let options = KubeconfigOptions { file: Some(kubeconfig), context: None };
    let kubernetes = KubernetesService::new(Arc::new(Cluster::load(&options).unwrap()));
    let world = World::new();
    let agent = world.agent(Services::new().with_handler("kubernetes", kubernetes)).await;
    (world, (agent, serving, directory))
}

fn upgrade(world: &World, protocol: &str) -> String {
    format!("{}{protocol}\r\n", http1::head(world, "POST", EXEC))
}

/// An upgraded connection of a caller, and the head of its 101.
async fn switched(world: &World, protocol: &str) -> (DuplexStream, String) {
    let mut caller = world.connect();
    caller.write_all(upgrade(world, protocol).as_bytes()).await.unwrap();
    let head = timeout(SOON, server::read_head(&mut caller)).await.unwrap();
    assert_eq!(status(&head), 101, "{head}");
    (caller, head)
}

/// Returns the 101 of an API server.
async fn switch(server: &mut TcpStream) {
    let head = server::read_head(server).await;
    let more = if head.contains("upgrade: websocket") {
        "Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
             Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n"
    } else {
        "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
    };
    let answer = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{more}\r\n");
    server.write_all(answer.as_bytes()).await.unwrap();
}

/// 4 MiB that repeat nowhere, so that nothing can be lost or swapped unseen: more than a stream's window.
fn large() -> Vec<u8> {
    (0..1u32 << 20).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// The connections of agentk, with all received bytes.
type Connections = Arc<Mutex<Vec<Vec<u8>>>>;

/// Sends this response to every request.
async fn refusing(answer: &'static str) -> (World, Connections, impl Sized) {
    let connections = Connections::default();
    let all = Arc::clone(&connections);
    let (world, running) = world(move |mut server: TcpStream| {
        let all = Arc::clone(&all);
        async move {
            let number = all.lock().len();
            all.lock().push(Vec::new());
            let mut some = [0; 4096];
            while let Ok(read @ 1..) = server.read(&mut some).await {
                all.lock()[number].extend_from_slice(&some[..read]);
                if some[..read].ends_with(b"\r\n\r\n") {
                    server.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        }
    })
    .await;
    (world, connections, running)
}

/// Without its body, `dryRun: [All]` would be lost, and the request would delete.
#[tokio::test]
async fn attack_17_request_with_a_body_is_forwarded_whole_and_is_no_upgrade() {
    let (received, mut seen) = mpsc::channel(1);
    let (world, _running) = world(move |mut server: TcpStream| {
        let received = received.clone();
        async move {
            let mut request = server::read_head(&mut server).await;
            while !request.contains("body") {
                let mut some = [0; 1024];
                let read = server.read(&mut some).await.unwrap();
                assert_ne!(read, 0, "the body is lost: {request}");
                request.push_str(&String::from_utf8_lossy(&some[..read]));
            }
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            received.send(request).await.unwrap();
        }
    })
    .await;
    let foo = "Connection: Upgrade\r\nUpgrade: foo/1\r\n";
    for (method, protocol) in [
        ("POST", SPDY),
        ("GET", WEBSOCKET),
        ("DELETE", WEBSOCKET),
        ("DELETE", foo),
        ("PUT", foo),
        ("PATCH", SPDY),
    ] {
        for body in
            ["Content-Length: 4\r\n\r\nbody", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"]
        {
            let mut caller = world.connect();
            let request =
                format!("{}{protocol}{body}", http1::head(&world, method, "/kubernetes/api/v1/pods/a"));
            caller.write_all(request.as_bytes()).await.unwrap();
            let head = timeout(SOON, server::read_head(&mut caller)).await.unwrap();
            assert_eq!(status(&head), 200, "{method} {protocol}: {head}");
            let request = timeout(SOON, seen.recv()).await.unwrap().unwrap().to_lowercase();
            assert!(request.starts_with(&format!("{} ", method.to_lowercase())), "{request}");
            assert!(
                !request.contains("\r\nupgrade:") && !request.contains("connection: upgrade"),
                "{request}"
            );
        }
    }
}

/// CVE-2018-1002105.
#[tokio::test]
async fn attack_25_refused_upgrade_opens_no_raw_connection() {
    for (code, answer) in [
        (403, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"),
        (500, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno"),
        (200, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"),
        // And says that it did switch.
        (200, "HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 2\r\n\r\nno"),
        (404, "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"),
    ] {
        let (world, connections, _running) = refusing(answer).await;
        let mut caller = world.connect();
        // The bytes of the attack: another request, with the agent's credential as it were.
        let raw = "GET /api/v1/secrets HTTP/1.1\r\nHost: kas\r\n\r\n";
        let attack = format!("{}{raw}", upgrade(&world, SPDY));
        caller.write_all(attack.as_bytes()).await.unwrap();
        let head = timeout(SOON, server::read_head(&mut caller)).await.unwrap();
        assert_eq!(status(&head), code, "{head}");
        assert!(!head.contains("upgrade"), "{head}");
        caller.write_all(raw.as_bytes()).await.ok();

        for _ in 0..2 {
            let plain = timeout(SOON, world.get("/agents/prod/kubernetes/harmless")).await.unwrap();
            assert_eq!(plain.status(), code);
            assert_eq!(kas_testing::world::text(plain).await, "no");
        }
        let connections: Vec<String> =
            connections.lock().iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        assert!(connections.len() > 1, "{code}: the connection of the upgrade was used again");
        assert!(!connections.concat().contains("secrets"), "{code}: raw bytes arrived: {connections:?}");
        assert_eq!(connections[0].matches("HTTP/1.1").count(), 1, "{code}: {connections:?}");
    }
}

/// The API server accepts the exec on a connection that agentk uses again, and closes it before its 101.
#[tokio::test]
async fn attack_80_exec_on_a_reused_connection_is_not_sent_again() {
    let arrivals = Connections::default();
    let all = Arc::clone(&arrivals);
    let (world, _running) = world(move |mut server: TcpStream| {
        let all = Arc::clone(&all);
        async move {
            loop {
                let head = server::read_head(&mut server).await;
                if head.is_empty() {
                    return;
                }
                let exec = head.contains("/exec");
                all.lock().push(head.into_bytes());
                if exec {
                    return;
                }
                server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            }
        }
    })
    .await;
    for (method, protocol) in [("GET", WEBSOCKET), ("POST", SPDY)] {
        let plain = timeout(SOON, world.get("/agents/prod/kubernetes/api")).await.unwrap();
        assert_eq!(kas_testing::world::text(plain).await, "ok");
        // agentk repeats a safe request only if the connection had been unused for a second.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(2)).await;
        tokio::time::resume();
        arrivals.lock().clear();
        let mut caller = world.connect();
        let request = format!("{}{protocol}\r\n", http1::head(&world, method, EXEC));
        caller.write_all(request.as_bytes()).await.unwrap();
        let head = timeout(SOON, server::read_head(&mut caller)).await.unwrap();
        assert_eq!(status(&head), 502, "{head}");
        let arrivals: Vec<_> =
            arrivals.lock().iter().map(|head| String::from_utf8_lossy(head).into_owned()).collect();
        assert_eq!(arrivals.len(), 1, "{arrivals:?}");
    }
}

/// CVE-2020-8559: a hostile kubelet redirects the credentials of the agent.
#[tokio::test]
async fn attack_26_redirect_of_an_upgrade_is_not_followed() {
    for (answer, location) in [
        (
            "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
            Some("/agents/prod/kubernetes/elsewhere"),
        ),
        (
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            None,
        ),
        ("HTTP/1.1 308 Permanent Redirect\r\nLocation: //evil.example/\r\nContent-Length: 0\r\n\r\n", None),
    ] {
        let (world, connections, _running) = refusing(answer).await;
        let mut caller = world.connect();
        caller.write_all(upgrade(&world, WEBSOCKET).as_bytes()).await.unwrap();
        let head = timeout(SOON, server::read_head(&mut caller)).await.unwrap();
        assert_eq!(status(&head) / 100, 3, "{head}");
        let said = head.lines().find_map(|line| line.strip_prefix("location: "));
        assert_eq!(said, location, "{head}");
        let connections = connections.lock().clone();
        assert_eq!(connections.len(), 1);
        assert_eq!(String::from_utf8_lossy(&connections[0]).matches("HTTP/1.1").count(), 1);
    }
}

#[tokio::test]
async fn attack_27_half_closed_input_keeps_the_output() {
    let (world, _running) = world(async |mut server: TcpStream| {
        switch(&mut server).await;
        let mut input = Vec::new();
        server.read_to_end(&mut input).await.unwrap();
        server.write_all(&input).await.unwrap();
        // The status frame of an exec comes last, once its input has ended.
        server.write_all(b"exit status 3").await.unwrap();
    })
    .await;
    for protocol in [SPDY, WEBSOCKET] {
        let (mut caller, head) = switched(&world, protocol).await;
        let said = match protocol {
            SPDY => ["upgrade: spdy/3.1", "x-stream-protocol-version: v4.channel.k8s.io"],
            _ => [
                "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=",
                "sec-websocket-protocol: v5.channel.k8s.io",
            ],
        };
        assert!(said.iter().all(|line| head.contains(line)), "{head}");
        let sent = large();
        caller.write_all(&sent).await.unwrap();
        caller.shutdown().await.unwrap();
        let mut got = Vec::new();
        timeout(SOON, caller.read_to_end(&mut got)).await.unwrap().unwrap();
        assert!(got == [&sent[..], b"exit status 3"].concat(), "{} of {} bytes", got.len(), sent.len());
    }
}

#[tokio::test]
async fn attack_27_half_closed_output_keeps_the_input() {
    let (heard, mut inputs) = mpsc::unbounded_channel();
    let (world, _running) = world(move |mut server: TcpStream| {
        let heard = heard.clone();
        async move {
            switch(&mut server).await;
            server.write_all(&large()).await.unwrap();
            server.shutdown().await.unwrap();
            let mut input = Vec::new();
            server.read_to_end(&mut input).await.unwrap();
            heard.send(input).unwrap();
        }
    })
    .await;
    let (mut caller, _) = switched(&world, SPDY).await;
    let mut output = Vec::new();
    timeout(SOON, caller.read_to_end(&mut output)).await.unwrap().unwrap();
    assert!(output == large());
    caller.write_all(&large()).await.unwrap();
    caller.shutdown().await.unwrap();
    assert!(timeout(SOON, inputs.recv()).await.unwrap().unwrap() == large());
}

#[tokio::test]
async fn attack_27_both_directions_flow_concurrently() {
    let (world, _running) = world(async |mut server: TcpStream| {
        switch(&mut server).await;
        let (mut reader, mut writer) = server.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        writer.shutdown().await.unwrap();
    })
    .await;
    let (caller, _) = switched(&world, SPDY).await;
    let (mut reader, mut writer) = tokio::io::split(caller);
    let writing = tokio::spawn(async move {
        writer.write_all(&large()).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut echo = Vec::new();
    timeout(SOON, reader.read_to_end(&mut echo)).await.unwrap().unwrap();
    assert!(echo == large());
    writing.await.unwrap();
}

/// A caller sends before its 101, and the first bytes of the API server arrive together with the head of its 101.
#[tokio::test]
async fn attack_27_raw_bytes_that_follow_a_head_at_once_arrive() {
    let (world, _running) = world(async |mut server: TcpStream| {
        let head = server::read_head(&mut server).await;
        assert!(!head.contains("early"), "{head}");
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nfirst output, ";
        server.write_all(answer.as_bytes()).await.unwrap();
        let mut input = Vec::new();
        server.read_to_end(&mut input).await.unwrap();
        server.write_all(&input).await.unwrap();
    })
    .await;
    let mut caller = world.connect();
    let request = format!("{}early input", upgrade(&world, SPDY));
    caller.write_all(request.as_bytes()).await.unwrap();
    let head = timeout(SOON, server::read_head(&mut caller)).await.unwrap();
    assert_eq!(status(&head), 101, "{head}");
    caller.shutdown().await.unwrap();
    let mut output = String::new();
    timeout(SOON, caller.read_to_string(&mut output)).await.unwrap().unwrap();
    assert_eq!(output, "first output, early input");
}

#[tokio::test]
async fn attack_28_disconnect_ends_the_exec() {
    let (ended, mut noticed) = mpsc::unbounded_channel();
    let (world, _running) = world(move |mut server: TcpStream| {
        let ended = ended.clone();
        async move {
            switch(&mut server).await;
            let mut talks = [0];
            server.read_exact(&mut talks).await.unwrap();
            // A process that says nothing sees the end of its input; one that talks is told by its next write.
            let mut rest = Vec::new();
            match talks {
                [0] => drop(server.read_to_end(&mut rest).await),
                _ => while server.write_all(&[0; 4096]).await.is_ok() {},
            }
            ended.send(talks).unwrap();
        }
    })
    .await;
    for talks in [[0], [1]] {
        let (mut caller, _) = switched(&world, SPDY).await;
        caller.write_all(&talks).await.unwrap();
        if talks == [1] {
            caller.read_exact(&mut [0; 4096]).await.unwrap();
            assert_eq!(world.kas.callers.observers.metrics.connections.get(), 1, "it is a connection still");
        }
        drop(caller);
        let ended = timeout(SOON, noticed.recv()).await.expect("the process ends").unwrap();
        assert_eq!(ended, talks);
    }
    let freed = async {
        while world.in_flight() != 0 || world.kas.callers.observers.metrics.connections.get() != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(SOON, freed).await.expect("its places are freed");
}

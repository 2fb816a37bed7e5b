//! A blocked thread makes `/liveness` fail, and nothing else does.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use cores::Cores;
use gateway::app::ValidatedConfig;
use process::{
    Notifier,
    liveness::{Liveness, LivenessThread},
};
use prometheus_client::registry::Registry;
use tokio::runtime::{Builder, Handle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The time between two heartbeats, so that a blocked thread is detected after 15 times as long.
const PERIOD: Duration = Duration::from_millis(20);

/// A kas whose main thread is a thread of the test.
struct Kas {
    main: Handle,
    cores: Cores,
    observability: SocketAddr,
    stop: CancellationToken,
    thread: thread::JoinHandle<()>,
}

/// Blocks a thread until it is dropped.
struct Block(#[expect(dead_code, reason = "dropping it ends the block")] mpsc::Sender<()>);

impl Kas {
    fn start() -> Self {
        let (started, starting) = mpsc::channel();
        let thread = thread::spawn(move || {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("kas.yaml");
            let listen = "{listen: {address: '127.0.0.1:0'}}";
            let configuration = format!(
                "agent: {{listen: {{address: '127.0.0.1:0'}}, kubernetes_api: {{listen: {{address: '127.0.0.1:0', \
                 listen_grace_period: 0s}}}}}}\nobservability: {listen}\nidentity: {{file: identity.yaml}}\n"
            );
            fs::write(&file, configuration).unwrap();
            fs::write(directory.path().join("identity.yaml"), "agents: []\ncallers: []\n").unwrap();
            let (cores, _threads) = Cores::start(2).unwrap();
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (mut app, listeners) = ValidatedConfig::read(&file).unwrap().bind(1024).await.unwrap();
                let liveness = Liveness::with_period(PERIOD);
                let admin = Arc::get_mut(&mut app.admin).unwrap();
                (admin.liveness, admin.registry) = (liveness.clone(), Registry::default());
                liveness.register(&mut admin.registry, "kas");
                let probes = LivenessThread::start(liveness, Notifier::default(), || {}).unwrap();
                let stop = CancellationToken::new();
                let address = listeners.observability.address();
                started.send((Handle::current(), cores.clone(), address, stop.clone())).unwrap();
                app.run(listeners, &cores, probes.runtime(), stop).await.unwrap();
            });
        });
        let (main, cores, observability, stop) = starting.recv().unwrap();
        Self { main, cores, observability, stop, thread }
    }

    /// Blocks the core with this number, or the main thread.
    fn block(&self, core: Option<usize>) -> Block {
        let (sender, receiver) = mpsc::channel::<()>();
        let (started, starting) = mpsc::channel();
        let task = async move {
            started.send(()).unwrap();
            let _ = receiver.recv();
        };
        match core {
            Some(core) => self.cores.reserve_at(core).spawn(&TaskTracker::new(), task),
            None => drop(self.main.spawn(task)),
        }
        starting.recv().unwrap();
        Block(sender)
    }

    fn get(&self, path: &str) -> String {
        let mut connection = TcpStream::connect(self.observability).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\nHost: kas\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        response
    }

    /// Waits for a response to `/liveness` with this status.
    fn liveness(&self, status: u16) -> String {
        // Each request has its own connection, so that this loop does not spin.
        loop {
            let response = self.get("/liveness");
            if response.starts_with(&format!("HTTP/1.1 {status} ")) {
                return response;
            }
        }
    }
}

#[test]
fn blocked_thread_is_not_alive_until_it_continues() {
    let kas = Kas::start();
    for (core, names) in [
        (Some(0), &["core-0"][..]),
        (Some(1), &["core-1"]),
        // The thread of the listeners. The listener of probes has another one.
        (None, &["accept-agent", "accept-public"]),
    ] {
        let block = kas.block(core);
        let response = kas.liveness(503);
        let (_, body) = response.split_once("\r\n\r\n").unwrap();
        let lines: Vec<_> = body.lines().collect();
        assert_eq!(lines[0], "not alive");
        assert!(
            names.iter().any(|name| lines[1].starts_with(&format!("{name}: no heartbeat for "))),
            "{body}"
        );
        assert!(lines.len() <= 1 + names.len(), "{body}");
        if let Some(core) = core {
            assert!(kas.get("/readiness").ends_with("\r\n\r\nready\n"), "a core serves no probes");
            let (metrics, name) =
                (kas.get("/metrics"), format!("kas_core_lag_seconds{{task=\"core-{core}\"}} "));
            let lag = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok()).unwrap();
            assert!(lag >= (PERIOD * 14).as_secs_f64(), "{metrics}");
        }
        drop(block);
        kas.liveness(200);
    }
    kas.stop.cancel();
    kas.thread.join().unwrap();
}

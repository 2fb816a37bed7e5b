//! Clients that make a library log a line for each frame.

use std::{io, sync::Arc};

use kas_testing::world::World;
use parking_lot::Mutex;
use tracing::{level_filters::LevelFilter, subscriber::DefaultGuard};
use tracing_subscriber::EnvFilter;

use crate::{
    cluster::{assert_serves, caller, services},
    http2::{ACK, PING, Sent, frame},
    tunnel_ends::{assert_agentk_serves, kas},
};

/// The lines that were logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects the log of this thread, until the guard is dropped.
    fn collect(filter: String) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter));
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn assert_small(&self) {
        let log = self.0.lock();
        assert!(log.len() < 10_000, "{} bytes: {}", log.len(), String::from_utf8_lossy(&log[..1000]));
    }
}

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns acknowledgements of pings that were never sent.
fn acknowledgements() -> Vec<u8> {
    frame(PING, ACK, 0, b"12345678").repeat(1000)
}

#[tokio::test(start_paused = true)]
async fn attack_83_caller_without_a_credential_cannot_flood_the_log_of_kas() {
    let (log, _guard) = Log::collect(gateway::test_support::log_filter(LevelFilter::INFO));
    let world = World::new();
    let _honest = world.agent(services()).await;
    let mut attacker = caller(&world, &[]).await;
    assert_eq!(attacker.flood(&acknowledgements(), 50).await, Sent::All);
    assert_serves(&world).await;
    log.assert_small();
}

#[tokio::test(start_paused = true)]
async fn attack_83_kas_cannot_flood_the_log_of_agentk() {
    for level in ["info", "debug"] {
        let (log, _guard) = Log::collect(agent::log_filter(level));
        let (mut kas, _agentk) = kas(&[]).await;
        assert_eq!(kas.flood(&acknowledgements(), 50).await, Sent::All);
        assert_agentk_serves().await;
        log.assert_small();
    }
}

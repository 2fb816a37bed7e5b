//! A load balancer between agentk, callers and kas, over in-memory pipes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use agentk_core::{Dial, DialError};
use bytes::BytesMut;
use futures_util::future::OptionFuture;
use http::{Request, Response};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, split},
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tunnel::Body;

use crate::world::World;

/// The timers of a load balancer.
#[derive(Clone, Copy, Debug)]
pub struct Timers {
    /// Cuts a connection of an agent after this time without a byte.
    pub idle: Duration,
    /// Cuts a connection of an agent at this age.
    pub age: Option<Duration>,
    /// Reuses a connection to kas that carried a request within this time.
    pub reuse: Duration,
    /// Collects bytes for this time before it sends them.
    pub buffering: Duration,
}

/// A load balancer in front of a kas. Clones share its state.
#[derive(Clone)]
pub struct LoadBalancer {
    world: World,
    timers: Timers,
    cuts: Arc<AtomicU32>,
    reload: Arc<Notify>,
}

/// The connection to kas that the load balancer uses for one caller after the other.
pub struct BackendConnection {
    world: World,
    reuse: Duration,
    open: Option<(SendRequest<Body>, Instant)>,
}

impl LoadBalancer {
    /// Creates a load balancer without connections.
    pub fn new(world: &World, timers: Timers) -> Self {
        Self { world: world.clone(), timers, cuts: Arc::default(), reload: Arc::default() }
    }

    /// Returns the number of connections that were cut.
    pub fn cuts(&self) -> u32 {
        self.cuts.load(Relaxed)
    }

    /// Cuts the connections of all agents, as a restart does.
    pub fn reload(&self) {
        self.reload.notify_waiters();
    }

    /// Returns a connection for callers, which is opened with the first request.
    pub fn backend(&self) -> BackendConnection {
        BackendConnection { world: self.world.clone(), reuse: self.timers.reuse, open: None }
    }

    async fn forward(self, agent: DuplexStream, kas: DuplexStream) {
        let Timers { idle, age, buffering, .. } = self.timers;
        let last_byte = Mutex::new(Instant::now());
        let ((agent_read, agent_write), (kas_read, kas_write)) = (split(agent), split(kas));
        let copying = async {
            tokio::select! {
                () = copy(agent_read, kas_write, buffering, &last_byte) => {}
                () = copy(kas_read, agent_write, buffering, &last_byte) => {}
            }
        };
        let silent = async {
            loop {
                let due = *last_byte.lock() + idle;
                if Instant::now() >= due {
                    return;
                }
                sleep_until(due).await;
            }
        };
        tokio::select! {
            () = copying => return,
            () = silent => {}
            Some(()) = OptionFuture::from(age.map(sleep)) => {}
            () = self.reload.notified() => {}
        }
        self.cuts.fetch_add(1, Relaxed);
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    buffering: Duration,
    last_byte: &Mutex<Instant>,
) {
    let mut bytes = BytesMut::with_capacity(64 << 10);
    while let Ok(1..) = from.read_buf(&mut bytes).await {
        *last_byte.lock() = Instant::now();
        if !buffering.is_zero() {
            sleep(buffering).await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        bytes.clear();
    }
}

/// Agents connect through the load balancer.
impl Dial for LoadBalancer {
    type Io = DuplexStream;

    async fn dial(&self) -> Result<DuplexStream, DialError> {
        let kas = self.world.dial().await?;
        let (near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(self.clone().forward(far, kas));
        Ok(near)
    }
}

impl BackendConnection {
    /// Sends a request.
    ///
    /// A load balancer sends a request into an idle connection without knowing whether kas closes it at this moment. Each
    /// connection that kas closed too early is therefore an error, which the caller receives as a 502.
    pub async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        let reused = self.open.take().filter(|(_, used)| used.elapsed() <= self.reuse);
        let mut sender = match reused {
            Some((sender, _)) => sender,
            None => {
                let io = TokioIo::new(self.world.connect());
                let (sender, connection) = hyper::client::conn::http1::handshake(io).await?;
                tokio::spawn(connection);
                sender
            }
        };
        let response = sender.send_request(request).await;
        self.open = Some((sender, Instant::now()));
        response
    }
}

//! Receives the audit events of the API server, which sends them to the webhook of `--audit-webhook-config-file`.
//!
//! ```text
//!   API server ── POST /audit, an EventList ──► receiver: event by event ──► queue ──► thread ──► ring of files ──► services::audit
//! ```
//!
//! Clients need a certificate of the authority that the owner of the cluster names. The API server sends batches, buffers some of them
//! while this listener is away, and drops the others: its metric `apiserver_audit_error_total` counts those.

mod metrics;
mod receiver;
mod writer;

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use cluster_audit::{Ring, RingView};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{metrics::AuditMetrics, receiver::Receiver, writer::RingWriter};
use crate::{ListenTls, cli::AuditOptions, file_followers::FileFollowers};

/// The path of the webhook.
const PATH: &str = "/audit";
/// The most connections. The API server keeps few of them.
const MAX_CONNECTIONS: usize = 64;
/// The time for a TLS handshake, and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a request, which is the longest that the API server waits for its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for requests in flight after the signal to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed accept, whose most likely cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A webhook that is ready to run.
#[derive(Debug)]
pub(crate) struct AuditWebhook {
    address: SocketAddr,
    tls: ListenTls,
    receiver: Arc<Receiver>,
    writer: RingWriter,
}

/// A webhook whose address is bound.
#[derive(Debug)]
pub(crate) struct BoundAuditWebhook {
    webhook: AuditWebhook,
    socket: TcpListener,
}

impl AuditWebhook {
    /// Builds the webhook that the options describe, or `None` if they have no address. It reads certificates and opens the ring, which
    /// blocks.
    ///
    /// # Errors
    ///
    /// A file is invalid, or the directory cannot be used; the error names the flag.
    pub(crate) fn build(
        options: AuditOptions,
        registry: &mut Registry,
        followers: &mut FileFollowers,
    ) -> anyhow::Result<Option<Self>> {
        let Some(address) = options.audit_listen else { return Ok(None) };
        let required = |file: Option<_>, flag| file.with_context(|| format!("--audit-listen needs {flag}"));
        let certificate = required(options.audit_certificate_file, "--audit-certificate-file")?;
        let key = required(options.audit_certificate_key_file, "--audit-certificate-key-file")?;
        let authority = required(options.audit_client_ca_file, "--audit-client-ca-file")?;
        let directory = required(options.audit_directory, "--audit-directory")?;
        let tls = ListenTls::read(certificate, key, Some(authority)).context("--audit-certificate-file")?;
        let check = tls.clone();
        followers.check("--audit-certificate-file", tls.files(), move || check.reload());
        let ring = Ring::open(&directory, options.audit_max_bytes)
            .with_context(|| format!("--audit-directory: {} cannot be used", directory.display()))?;
        let metrics = AuditMetrics::register(registry, &ring);
        let (writer, queue) = RingWriter::start(ring, metrics.clone());
        let receiver = Arc::new(Receiver::new(queue, metrics));
        Ok(Some(Self { address, tls, receiver, writer }))
    }

    /// Returns the events that are kept.
    pub(crate) fn view(&self) -> RingView {
        self.writer.view()
    }

    /// Binds the address.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub(crate) async fn bind(self) -> anyhow::Result<BoundAuditWebhook> {
        let socket = TcpListener::bind(self.address).await;
        let socket = socket.with_context(|| format!("cannot listen on {} (--audit-listen)", self.address))?;
        tracing::info!(address = %socket.local_addr()?, "receiving audit events of the API server");
        Ok(BoundAuditWebhook { webhook: self, socket })
    }
}

impl BoundAuditWebhook {
    /// Receives events until `shutdown`. Requests in flight are finished within some seconds, and all events that were received are
    /// written then.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let Self { webhook: AuditWebhook { tls, receiver, writer, .. }, socket } = self;
        let connections = accept(socket, tls, receiver, shutdown).await;
        let _ = timeout(STOP_TIMEOUT, connections.join_all()).await;
        // The queue ends with the last connection.
        let _ = timeout(STOP_TIMEOUT, writer.finished()).await;
    }
}

/// Accepts connections until `shutdown`. Returns those that are open then, which end after the request in flight.
async fn accept(
    listener: TcpListener,
    tls: ListenTls,
    receiver: Arc<Receiver>,
    shutdown: CancellationToken,
) -> JoinSet<()> {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepting = async {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("it is never closed");
            (listener.accept().await, permit)
        };
        match shutdown.run_until_cancelled(accepting).await {
            None => return connections,
            Some((Ok((tcp, _)), permit)) => {
                let serving = serve(tcp, tls.clone(), Arc::clone(&receiver), shutdown.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Some((Err(error), _)) => {
                tracing::warn!(%error, "a connection was not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(tcp: TcpStream, tls: ListenTls, receiver: Arc<Receiver>, shutdown: CancellationToken) {
    let peer = tcp.peer_addr().ok();
    let accepted = timeout(HEAD_TIMEOUT, tls.accept(tcp)).await;
    let io = match accepted.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))) {
        Ok(io) => io,
        Err(error) => {
            // Strangers may cause any number of them, and the API server reports its own.
            receiver.metrics().count_request("tls");
            return tracing::debug!(?peer, %error, "a TLS handshake failed");
        }
    };
    let service = service_fn(async |request| Ok::<_, Infallible>(respond(&receiver, request).await));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(?peer, %error, "a connection failed");
    }
}

async fn respond(receiver: &Receiver, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let answer = |status: StatusCode, text: String| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != PATH || request.method() != Method::POST {
        receiver.metrics().count_request("invalid");
        return answer(StatusCode::NOT_FOUND, format!("the API server posts its audit events to {PATH}\n"));
    }
    let received = timeout(REQUEST_TIMEOUT, receiver.receive(request.into_body())).await;
    match received {
        Ok(Ok(())) => {
            receiver.metrics().count_request("ok");
            answer(StatusCode::OK, String::new())
        }
        Ok(Err(error)) => {
            receiver.metrics().count_request("invalid");
            answer(StatusCode::BAD_REQUEST, format!("{error}\n"))
        }
        Err(_) => {
            receiver.metrics().count_request("timeout");
            answer(StatusCode::REQUEST_TIMEOUT, "the events did not arrive in time\n".to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
